"""GradVac: turn each task's gradient towards the others until their cosines are what they were on average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, OptionError, hookimpl, safe_sqrt
from gradhomog_plugins._orders import fixed_orders, meetings, random_orders
from gradhomog_plugins._unit_rows import ROUNDING, unit_gramian


class GradVac(Homogenizer):
    """Each row is given multiples of the other tasks' rows, one after another, where its cosine with one is too small.

    ĝ_i ← g_i;  for j ≠ i in random order:  φ = cos(ĝ_i, g_j);  if φ < φ̂_ij:
        ĝ_i ← ĝ_i + ‖ĝ_i‖ (φ̂_ij √(1 − φ²) − φ √(1 − φ̂_ij²)) / (‖g_j‖ √(1 − φ̂_ij²)) · g_j,  so that cos(ĝ_i, g_j) = φ̂_ij
    after the step  φ̂_ij ← (1 − β) φ̂_ij + β φ;  at first φ̂_ij = 0, which is PCGrad
    d = 1/N Σ_i ĝ_i  (`scale="mean"`)  or  Σ_i ĝ_i  (`scale="paper"`)

    Args:
        beta: β in [0, 1], how fast the targets follow.
        ceiling: in (0, 1): |φ̂| counts as at most this, so that a correction makes ĝ_i at most 1/√(1 − ceiling²) times
            as long, 22 times for 0.999. Corrections towards several tasks multiply; all of them together are held to
            that length too.
        key: targets by pairs of `"slot"`s (places in the batch) or of `"domain"`s.
        order: `"random"`, a permutation of its own for every task and step; or `"fixed"`, the tasks' order in the
            batch.
        seed: of the generator that the orders are drawn from; never the global one.
        scale: see above.

    Computed on the Gramian alone, all rows at once: with p the part of ĝ_i across g_j, the step makes the part along it
    max(s, p φ̂/√(1 − φ̂²)), so that there is one condition less. N − 1 vectorised steps on N×N matrices.

    Differentiable in the rows wherever no cosine is at its target or ±1; targets and orders are constants. A zero row
    is never divided by, is added to nobody and teaches nothing. State: the targets, and the generator. Pairs of equal
    keys in a batch move their target by the mean of what they show. `update` learns the cosines that `mix` met, in
    mix's own order, so that what is drawn is drawn once.

    Source: Wang et al. 2021, "Gradient Vaccine", arXiv 2010.05874, algorithm 1.

    Deviations: (1) the mean by default, where algorithm 1 sums; (2) `ceiling`, and the length that it allows: no
    reference has them, and after 60 steps of three equal gradients with β = 0.5 TorchJD makes ordinary ones 10⁹ times
    as long in float64 and 10¹⁷ times in float32 (measured); (3) no epsilon in the quotients; TorchJD's changes the step
    by 28 % at norms of 10⁻⁴; (4) β = 0.01 as in the paper; TorchJD and LibMTL take 0.5; (5) targets belong to pairs of
    keys and do not start anew when the number of tasks changes, as TorchJD's do; (6) the cosines are those of the rows
    given: a finer grain is the host's.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("gradvac(beta=0.5)")
    >>> _ = pipe.combine(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))  # a cosine of 0.6: the targets become 0.3
    >>> pipe.combine(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor([0.6572, 0.6572])
    """

    carried = ("targets", "generator")

    def __init__(
        self,
        beta: float = 0.01,
        ceiling: float = 0.999,
        key: Literal["slot", "domain"] = "slot",
        order: Literal["random", "fixed"] = "random",
        seed: int = 0,
        scale: Literal["mean", "paper"] = "mean",
    ) -> None:
        if not 0 <= beta <= 1:
            raise OptionError(f"gradvac: `beta` must be in [0, 1]; got {beta!r}.")
        if not 0 < ceiling < 1:
            raise OptionError(f"gradvac: `ceiling` must be between 0 and 1; got {ceiling!r}.")
        self.beta, self.ceiling, self.key, self.order, self.scale = beta, ceiling, key, order, scale
        self.targets: dict[str, dict[str, float]] = {}
        self.generator = torch.Generator().manual_seed(seed)
        self._met: tuple[Tensor, Tensor] | None = None  # orders and cosines, between `mix` and `update` of one step

    def mix(self, evidence: Evidence) -> Tensor:
        gramian, tasks = evidence.gramian(), evidence.tasks
        orders = random_orders(tasks, self.generator) if self.order == "random" else fixed_orders(tasks)
        targets = self._targets_of(evidence.by(self.key))
        mixing, met = vaccinate(
            gramian,
            orders.to(gramian.device),
            targets.to(gramian.device),
            longest=1 / math.sqrt(1 - self.ceiling**2),
        )
        self._met = orders, met.detach()
        return mixing if self.scale == "mean" else tasks * mixing

    def update(self, evidence: Evidence) -> None:
        if self._met is None:
            return
        keys, (orders, met), self._met = evidence.by(self.key), self._met, None
        shown: dict[str, dict[str, list[float]]] = {}
        for first, others, cosines in zip(keys, orders.tolist(), met.tolist(), strict=True):
            row = shown.setdefault(first, {})
            for other, cosine in zip(others, cosines, strict=True):
                if not math.isnan(cosine):
                    row.setdefault(keys[other], []).append(cosine)
        for first, row in shown.items():
            if row:
                held = self.targets.setdefault(first, {})
            for second, cosines in row.items():
                mean = sum(cosines) / len(cosines)
                held[second] = (1 - self.beta) * held.get(second, 0.0) + self.beta * mean

    def _targets_of(self, keys: Sequence[str]) -> Tensor:
        if not self.targets:
            return torch.zeros(len(keys), len(keys), dtype=torch.float64)
        rows = [self.targets.get(first, {}) for first in keys]
        held = [[row.get(second, 0.0) for second in keys] for row in rows]
        return torch.tensor(held, dtype=torch.float64).clamp(-self.ceiling, self.ceiling)


def vaccinate(gramian: Tensor, orders: Tensor, targets: Tensor, longest: float) -> tuple[Tensor, Tensor]:
    """The mixing matrix C, ĝ = C·J, float64 `[tasks, tasks]`, and the cosines that were met, shaped as `orders`.

    A cosine is NaN where nothing was met: of zero rows and of a ĝ_i that has become zero. `longest` is how many times
    as long as g_i a row ĝ_i may be.
    """
    norms, cosines = unit_gramian(gramian)
    identity = torch.eye(len(gramian), dtype=gramian.dtype, device=gramian.device)
    if len(gramian) == 1:
        return identity, gramian.new_zeros(1, 0)
    present = gramian.diagonal().sign()
    tangents = (present * targets / (1 - targets.square()).sqrt()).gather(1, orders)
    # ⟨ĝ_i, g_j⟩ / (n_i n_j) for those that task i meets, in its order, and ‖ĝ_i‖² / n_i²
    inner, square = cosines.gather(1, orders), present[:, None]
    between = meetings(cosines, orders)
    added, along, squares = [], [], []
    for step in range(orders.shape[1]):
        projection, tangent = inner[:, step : step + 1], tangents[:, step : step + 1]
        across = torch.addcmul(square, projection, projection, value=-1).clamp_min(0)
        amount = (tangent * safe_sqrt(across) - projection).clamp_min(0)
        added.append(amount)
        along.append(projection)
        squares.append(square)
        turned = projection + amount
        square = torch.addcmul(across, turned, turned)
        if step + 1 < orders.shape[1]:
            inner = torch.addcmul(inner, amount, between(step))
    # Each task meets each other once, so that what it is given of them can be written down at the end.
    amounts = identity.scatter(1, orders, torch.cat(added, dim=1))
    factors = norms[:, None] * longest / square.clamp_min(longest**2).sqrt()
    lengths = torch.cat(squares, dim=1)
    seen = torch.where(lengths * present[orders] > ROUNDING**2, lengths, torch.nan)
    return factors * amounts / norms, torch.cat(along, dim=1) / seen.sqrt()


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=GradVac,
        summary="turns each task's gradient towards the others until their cosines are as they were on average",
        reference="Wang et al. 2021, arXiv 2010.05874",
        traits={"differentiable", "stateful", "stochastic", "scale_equivariant", "rotation_equivariant"},
        needs={"gramian"},
    )
