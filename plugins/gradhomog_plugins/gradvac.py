"""GradVac: add multiples of other tasks' gradients to each gradient, to raise low cosines to their past average."""

import math
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, hookimpl
from gradhomog_plugins._orders import projection_coefficients, task_orders
from gradhomog_plugins._unit_rows import arrays, unit_gramian

# Relative to the length of a row g_i: cosines of a shorter ĝ_i are rounding errors and are ignored.
SHORT = 1e-6

# Upper limit of |φ̂|: a correction makes ĝ_i at most 1/√(1 − CEILING²) = 22 times as long. Corrections towards several
# tasks multiply; together they are limited to the same factor.
CEILING = 0.999
LONGEST = 1 / math.sqrt(1 - CEILING**2)


class GradVac(Homogenizer):
    """Add to each row multiples of the other rows, one after another, where their cosine is below its target.

        ĝ_i ← g_i;  for j ≠ i in random order:  φ = cos(ĝ_i, g_j);  if φ < φ̂_ij:
            ĝ_i ← ĝ_i + ‖ĝ_i‖ (φ̂_ij √(1 − φ²) − φ √(1 − φ̂_ij²)) / (‖g_j‖ √(1 − φ̂_ij²)) · g_j
        so that cos(ĝ_i, g_j) = φ̂_ij;  after the step φ̂_ij ← (1 − β) φ̂_ij + β φ;  at first φ̂_ij = 0, which is PCGrad
        d = 1/N Σ_i ĝ_i;  paper's scale: d = Σ_i ĝ_i

    Args:
        beta: β in [0, 1], the rate of the targets φ̂.
        order: `"random"`, a new permutation for every task and step; or `"fixed"`, the order of the tasks in the batch.
        seed: seed of the random orders.

    Use it when the cosines of two tasks are positive on average but fall far below their average in single steps;
    unlike PCGrad it also corrects pairs that do not conflict. Where the average cosine is near zero, it is nearly
    PCGrad. It is harmful where tasks rightly differ, because rows are pulled towards an average of the past, and
    corrected rows can become much longer.

    Computed on the Gramian alone, for all rows at once: with p the part of ĝ_i orthogonal to g_j and s its part along
    g_j, the step sets the latter to max(s, p φ̂/√(1 − φ̂²)), which needs no condition. N − 1 vectorized steps on N×N
    matrices. A zero row is never a divisor, is added to no other row, and its cosines are ignored. If a batch has
    several pairs of equal keys, their target is updated once, by the mean of the cosines φ that `mix` computed, in its
    order.

    Differentiable in the rows where no cosine is at its target or ±1; targets and orders are constants.

    State: the targets.

    Cost: O(N³), about 2 s for N = 1024.

    Source: Wang et al. 2021, "Gradient Vaccine", arXiv 2010.05874, algorithm 1.

    Deviations: (1) The mean by default; algorithm 1 sums. (2) |φ̂| is at most 0.999, and ĝ_i at most 22 times as long
    as g_i. No reference has these limits: after 60 steps of three equal gradients with β = 0.5, TorchJD makes ordinary
    gradients 10⁹ times as long in float64 and 10¹⁷ times in float32 (measured). (3) No epsilon in the quotients;
    TorchJD's changes the step by 28 % at norms of 10⁻⁴. (4) β = 0.01 as in the paper; TorchJD and LibMTL have 0.5. (5)
    Targets belong to pairs of keys, and are kept when the number of tasks changes; TorchJD's restart. (6) The cosines
    are those of the given rows; groups of parameters are an option of the caller, for example `per="layer"` of
    `gradhomog.backward`.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("gradvac(beta=0.5)")
    >>> _ = pipe.combine(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))  # a cosine of 0.6: the targets become 0.3
    >>> pipe.combine(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor([0.6572, 0.6572])
    """

    state_names = {"targets": Tensor, "keys": list[str]}

    def __init__(
        self,
        beta: Annotated[float, Interval(ge=0, le=1)] = 0.01,
        order: Literal["random", "fixed"] = "random",
        seed: int = 0,
    ) -> None:
        self.beta, self.order, self.seed = beta, order, seed
        self.keys: list[str] = []
        self.targets = torch.zeros(0, 0, dtype=torch.float64)  # φ̂ of pairs of keys

    def mix(self, step: Step) -> StageResult:
        orders = task_orders(step.tasks, self.order, step)
        _, places, all_targets = self._all_targets(step)
        targets = all_targets[places[:, None], places].clamp(-CEILING, CEILING)
        mixing, cosines = raise_cosines(step.gramian(), orders, targets)
        return StageResult(mixing, aux=(orders, cosines.detach()))

    def update(self, step: Step) -> dict[str, list[str] | Tensor]:
        orders, cosines = step.aux
        keys, places, all_targets = self._all_targets(step)
        # Sums of the cosines over the tasks of each pair of keys, and their number.
        table = torch.full((step.tasks, step.tasks), torch.nan, dtype=torch.float64).scatter(1, orders, cosines)
        one_hot = torch.nn.functional.one_hot(places, len(keys)).double()
        count = one_hot.T @ (~table.isnan()).double() @ one_hot
        mean = one_hot.T @ table.nan_to_num(0.0) @ one_hot / count.clamp_min(1)
        return {"targets": torch.where(count > 0, torch.lerp(all_targets, mean, self.beta), all_targets), "keys": keys}

    def paper_scale(self, step: Step) -> float:
        return step.tasks

    def _all_targets(self, step: Step) -> tuple[list[str], Tensor, Tensor]:
        """Return all keys, the index of each task's key among them, and the targets of all pairs, 0 for a new key."""
        own = step.names
        keys = list(dict.fromkeys([*self.keys, *own]))
        place = {key: index for index, key in enumerate(keys)}
        all_targets = torch.zeros(len(keys), len(keys), dtype=torch.float64)
        all_targets[: len(self.keys), : len(self.keys)] = self.targets
        return keys, torch.tensor([place[key] for key in own]), all_targets


@np.errstate(all="ignore")
def raise_cosines(gramian: Tensor, orders: Tensor, targets: Tensor, longest: float = LONGEST) -> tuple[Tensor, Tensor]:
    """Return the mixing matrix C, ĝ = C·J, float64 `[tasks, tasks]`, and the cosines φ, shaped as `orders`.

    A cosine is NaN for zero rows and for a ĝ_i that has become zero. `longest` limits the length of ĝ_i relative to
    that of g_i.
    """
    xp, products, others, goals = arrays(gramian, orders, targets)
    norms, cosines = unit_gramian(xp, products)
    identity, each = xp.eye(len(products), dtype=products.dtype), xp.arange(len(products))[:, None]
    present = xp.sign(products.diagonal())
    turns = (present * goals / xp.sqrt(1 - goals * goals))[each, others]
    square = present[:, None]  # ‖ĝ_i‖² / n_i²
    step = 0

    def amount(projection: Any) -> Any:
        nonlocal square, step
        across = square - projection * projection
        nonzero = across > 0
        across = xp.where(nonzero, across, 0.0)
        root = xp.sqrt(xp.where(nonzero, across, 1.0)) * nonzero  # with derivative zero at zero
        added = turns[:, step : step + 1] * root - projection
        added = xp.where(added > 0, added, 0.0)
        square, step = across + (projection + added) * (projection + added), step + 1
        return added

    added, along = projection_coefficients(xp, cosines, others, amount)  # `along` is ⟨ĝ_i, g_j⟩ / (n_i n_j)
    identity[each, others] = added  # every pair (i, j) occurs once
    factors = norms[:, None] * longest / xp.sqrt(xp.where(square > longest**2, square, longest**2))
    grown = added * (2 * along + added)
    lengths = present[:, None] + grown.cumsum(axis=1) - grown  # ‖ĝ_i‖² / n_i² before each
    met = xp.where(lengths * present[others] > SHORT**2, lengths, xp.nan)
    return torch.as_tensor(factors * identity / norms), torch.as_tensor(along / xp.sqrt(met))


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=GradVac,
        summary="adds other tasks' gradients to raise low cosines to their past average",
        reference="Wang et al. 2021, arXiv 2010.05874",
        traits={"differentiable", "stateful", "stochastic", "scale_equivariant", "rotation_equivariant"},
        needs={"gramian"},
    )
