"""MoCo: follow each task's gradient through its noise, and weigh what was followed towards the shortest vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, OptionError, Rows, hookimpl
from gradhomog_plugins._held_rows import Row, by_task, fitting, inner_products, like, move, moved_sum
from gradhomog_plugins._simplex import project_onto_simplex


class MoCo(Homogenizer):
    """Weights λ descend, one step with every step of the model, on the length of Σ_i λ_i y_i; y_i are averages of rows.

    y_i ← y_i − β_t (y_i − g_i),  β_t = beta / t^beta_decay,  y_i = 0 before the first step
    d = Σ_i λ_i y_i
    λ ← Π_Δ(λ − γ_t (Y Yᵀ / s + ρ I) λ),  γ_t = gamma / t^gamma_decay,  s = 1/N Σ_i ‖y_i‖²
    Π_Δ is the nearest point with entries ≥ 0 and sum 1; λ = 1/N before the first step.

    With the gradients of all of a task's data λ goes to the weights of MGDA. With those of samples MGDA's answer is
    biased, as it is no linear function of them; averages have less and less noise, and so less and less bias.

    Args:
        beta, beta_decay: in (0, 1], and ≥ 0.
        gamma, gamma_decay: ≥ 0 both.
        rho: ρ ≥ 0, pull towards equal weights.
        relative: the step above, which a common factor of the rows does not change; False is the paper's, with s = 1,
            for which `gamma` has to be of the order of 1/‖g‖².
        key: averages and weights by `"slot"` (place in the batch) or by `"domain"`, which is right where a slot's
            domain changes from batch to batch.
        scale: `"mean"`: y_i is divided by 1 − Π (1 − β_t), what the start from zero leaves of it; then N identical rows
            give that row. `"paper"`: it is not.

    Differentiable in the rows, with weights and earlier averages as constants. Zero rows, duplicates, opposites and one
    task need no exception. t counts a task's own steps in β_t, and all steps in γ_t. Weights of a batch that holds only
    some keys are divided by their sum; to the others they keep their proportion. Two tasks of one key in a batch start
    from one average and one weight; both move the average, one after the other, and the weight becomes their mean.

    State: a row for every key, in float32 or float64: N × params numbers in all; and the weights. A key whose row
    changes names or shapes starts anew. The direction is no mixture of the rows: all rows become it. Cost: some seven
    reads and one write of N × params numbers, and memory for two rows.

    Source: Fernando et al. 2023, "Mitigating Gradient Bias in Multi-objective Learning", arXiv 2210.12624, algorithm 1.
    β_t, γ_t and ρ by default are those of the code that its authors gave to LibMTL.

    Deviations: (1) `relative`; (2) LibMTL first divides each row by its norm and multiplies it with its loss, and puts
    softmax in the place of Π_Δ, which pulls weights together even where there is nothing to learn: of (1, 0) it makes
    (0.73, 0.27); (3) in LibMTL this step's rows move λ before the direction is taken, here afterwards.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("moco(gamma=1)")
    >>> rows = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> pipe.combine(rows), pipe.combine(rows)
    (tensor([1.0000, 0.5000]), tensor([0.4000, 0.8000]))
    """

    carried = ("held", "masses", "counts", "weights", "steps")

    def __init__(
        self,
        beta: float = 0.5,
        beta_decay: float = 0.5,
        gamma: float = 0.1,
        gamma_decay: float = 0.5,
        rho: float = 0.0,
        relative: bool = True,
        key: Literal["slot", "domain"] = "slot",
        scale: Literal["mean", "paper"] = "mean",
    ) -> None:
        if not 0 < beta <= 1:
            raise OptionError(f"moco: `beta` must be in (0, 1]; got {beta!r}.")
        for name, value in (
            ("beta_decay", beta_decay), ("gamma", gamma), ("gamma_decay", gamma_decay), ("rho", rho),
        ):  # fmt: skip
            if not 0 <= value < math.inf:
                raise OptionError(f"moco: `{name}` must be finite and not negative; got {value!r}.")
        self.beta, self.beta_decay, self.gamma, self.gamma_decay = beta, beta_decay, gamma, gamma_decay
        self.rho, self.relative, self.key, self.scale = rho, relative, key, scale
        self.held: dict[str, Row] = {}  # y_i / mass_i
        self.masses: dict[str, float] = {}  # 1 − Π (1 − β_t)
        self.counts: dict[str, int] = {}  # t
        self.weights: dict[str, float] = {}  # N λ_i
        self.steps = 0
        self._keys: list[str] = []

    def mix(self, evidence: Evidence) -> Tensor:
        """Leaves the rows as they are; `rows` is not told whose they are."""
        self._keys = evidence.by(self.key)
        return torch.ones(evidence.tasks, dtype=torch.float64)

    def rows(self, jacobian: Rows) -> Rows:
        keys, self._keys = self._keys, []
        rows = by_task(jacobian)
        held = [fitting(self.held, key, row) for key, row in zip(keys, rows, strict=True)]
        masses, shares = zip(*(self._moved(key, row) for key, row in zip(keys, held, strict=True)), strict=True)
        weights = [
            weight * size for weight, size in zip(self._weights(keys).tolist(), self._sizes(masses), strict=True)
        ]
        return like(jacobian, moved_sum(held, rows, shares, weights))

    def update(self, evidence: Evidence) -> None:
        keys = evidence.by(self.key)
        for key, row in zip(keys, by_task(evidence.rows), strict=True):
            held = fitting(self.held, key, row)
            self.masses[key], share = self._moved(key, held)
            self.counts[key] = 1 + (0 if held is None else self.counts[key])
            move(self.held, key, row, share)
        self.steps += 1
        self._learn(keys, [self.held[key] for key in keys])

    def _learn(self, keys: list[str], held: list[Row]) -> None:
        before = self._weights(keys)
        sizes = torch.tensor(self._sizes([self.masses[key] for key in keys]), dtype=torch.float64)
        inner, squares = inner_products(held, (before * sizes).tolist())
        inner, squares = inner.cpu() * sizes, squares.cpu() * sizes.square()
        rate = self.gamma / self.steps**self.gamma_decay
        after = descended(before, inner, squares.mean() if self.relative else torch.ones(()), rate, self.rho)
        # What this batch's keys hold together stays the same, so that they keep their proportion to keys not in it.
        together = sum(self.weights.get(key, 1.0) for key in keys) or float(len(keys))
        for key in dict.fromkeys(keys):
            places = [place for place, other in enumerate(keys) if other == key]
            self.weights[key] = together * float(after[places].mean())

    def _weights(self, keys: list[str]) -> Tensor:
        """λ of a batch, float64 `[tasks]`."""
        held = torch.tensor([self.weights.get(key, 1.0) for key in keys], dtype=torch.float64)
        return held / held.sum() if held.sum() > 0 else torch.full_like(held, 1 / len(keys))

    def _moved(self, key: str, held: Row | None) -> tuple[float, float]:
        """A key's mass after this step, and the share by which y / mass moves to the row."""
        mass, count = (0.0, 0) if held is None else (self.masses[key], self.counts[key])
        beta = self.beta / (count + 1) ** self.beta_decay
        mass = (1 - beta) * mass + beta
        return mass, beta / mass

    def _sizes(self, masses: Sequence[float]) -> list[float]:
        """By how much y_i is longer than what is held of it."""
        return list(masses) if self.scale == "paper" else [1.0] * len(masses)


def descended(weights: Tensor, inner: Tensor, size: Tensor, rate: float, rho: float) -> Tensor:
    """Π_Δ(λ − rate · (Y Yᵀ λ / size + ρ λ)), `[tasks]`; `inner` is Y Yᵀ λ = ⟨y_i, d⟩, and zero rows have size 0."""
    slope = inner / torch.where(size > 0, size, 1.0)
    return project_onto_simplex(weights - rate * (slope + rho * weights))


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=MoCo,
        summary="follows each gradient through its noise, and weighs what it followed towards the shortest vector",
        reference="Fernando et al. 2023, arXiv 2210.12624",
        traits={"differentiable", "stateful", "momentum", "scale_equivariant", "rotation_equivariant"},
        needs={"rows"},
    )
