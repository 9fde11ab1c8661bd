"""DB-MTL: gradients of the logarithms of the losses, averaged over steps, all as long as the longest."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, OptionError, Rows, hookimpl, safe_sqrt
from gradhomog_plugins import _losses
from gradhomog_plugins._held_rows import Row, by_task, fitting, like, move, moved, named, squared_norms

Number = TypeVar("Number", float, Tensor)

INSTEAD = "Use log=False to balance the gradients as they are."

# Of a loss that is not zero: the sum of several of its inverses is still a number.
SMALLEST = 1e-300


class Shown(NamedTuple):
    """What `mix` sees of a step and `rows` does not.

    Attributes:
        keys: of the tasks.
        factors: 1/L_i, and zero for a loss of zero, float64 `[tasks]`.
        least: the least loss that is not zero; one without any.
    """

    keys: list[str]
    factors: Tensor
    least: Tensor


class DBMTL(Homogenizer):
    """Rows are averages over steps of the gradients of log L_i, stretched until all are as long as the longest of them.

    b_i ← ĝ_i + β/t^σ (b_i − ĝ_i),  ĝ_i = ∇ log L_i = g_i / L_i,  b_i = 0 before the first step
    d = Σ_i (max_k ‖b_k‖ / ‖b_i‖) b_i  (`scale="paper"`)
    `scale="mean"`: 1/N · min_j L_j · d, where each b_i is divided by 1 − Π_s β/s^σ, what the start from zero leaves of
    it. Then neither the size of the losses nor the number of steps has a say in the length.

    Args:
        beta: in [0, 1), how much of the average a step keeps; 0 is no average.
        sigma: ≥ 0, at which β falls.
        log: whether ĝ_i is that of log L_i; False takes g_i, and reads no losses.
        key: averages by `"slot"` (place in the batch) or by `"domain"`, which is right where a slot's domain changes
            from batch to batch.
        scale: see above.

    Differentiable in rows and losses, with the averages before the step as constants. A task whose average is zero has
    a row of zero. Of a loss of zero log has no gradient, and a loss that cannot be negative has none either: its task
    adds nothing to its average. Negative losses raise, as do those so near zero that rows become too long for their
    dtype. t counts a task's own steps. Two tasks of one key in a batch both start from its average, and both move it,
    one after the other.

    State: a row for every key, in float32 or float64: N × params numbers in all. A key whose row changes names or
    shapes starts anew. Cost: some three reads and two writes of so many numbers, and the memory of new rows.

    Source: Lin et al. 2023, "Dual-Balancing for Multi-Task Learning", arXiv 2308.12029, algorithm 1.

    Deviations: (1) `scale="mean"` by default; (2) the reference code (LibMTL) adds 1e-8 to L_i and to ‖b_i‖; (3) it
    counts the steps of all tasks together, which is the same for tasks that are in every batch.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("db_mtl")
    >>> pipe.combine(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), losses=[1.0, 1.0])
    tensor([1.5000, 1.5000])
    """

    carried = ("held", "counts")

    def __init__(
        self,
        beta: float = 0.9,
        sigma: float = 0.0,
        log: bool = True,
        key: Literal["slot", "domain"] = "slot",
        scale: Literal["mean", "paper"] = "mean",
    ) -> None:
        if not 0 <= beta < 1:
            raise OptionError(f"db_mtl: `beta` must be in [0, 1); got {beta!r}.")
        if not 0 <= sigma < math.inf:
            raise OptionError(f"db_mtl: `sigma` must be finite and not negative; got {sigma!r}.")
        self.beta, self.sigma, self.log, self.key, self.scale = beta, sigma, log, key, scale
        self.needs = {"rows", "losses"} if log else {"rows"}
        self.held: dict[str, Row] = {}  # b_i / unit_i, a mean of rows as they were given
        self.counts: dict[str, list[float]] = {}  # unit_i, mass_i and t: see `advanced`
        self._shown: Shown | None = None

    def mix(self, evidence: Evidence) -> Tensor:
        self._shown = self._look(evidence)
        return torch.ones(evidence.tasks, dtype=torch.float64)

    def rows(self, jacobian: Rows) -> Rows:
        assert self._shown is not None, "`mix` comes first"
        (keys, factors, least), self._shown = self._shown, None
        held = [fitting(self.held, key, row) for key, row in zip(keys, by_task(jacobian), strict=True)]
        counts = [self._counts(key, row) for key, row in zip(keys, held, strict=True)]
        before = torch.tensor(counts, dtype=torch.float64, device=factors.device)
        units, masses, shares = advanced(before[:, 0], before[:, 1], self._kept(before[:, 2]), factors)
        rows = moved(held, jacobian, shares)
        norms = safe_sqrt(squared_norms(rows))
        lengths = norms * (units * len(keys) if self.scale == "paper" else units / masses * least)
        there, longest = lengths > 0, lengths.max()
        stretch = torch.where(there, longest / torch.where(there, norms, 1.0), 0.0)
        found = like(jacobian, {name: stretched(value, stretch) for name, value in rows.items()})
        if not representable(found, longest):
            raise OptionError(
                f"db_mtl: the average of ∇ log L of {self.key} {keys[int(lengths.argmax())]!r} is {longest.item():.3g} "
                f"long, and all rows become as long; that is no number of theirs. Its loss is near zero, or was. "
                f"{INSTEAD}"
            )
        return found

    def update(self, evidence: Evidence) -> None:
        keys, factors, _ = self._look(evidence)
        for key, row, factor in zip(keys, by_task(evidence.rows), factors.tolist(), strict=True):
            unit, mass, steps = self._counts(key, fitting(self.held, key, row))
            unit, mass, share = advanced(unit, mass, self._kept(steps), factor)
            move(self.held, key, row, share)
            self.counts[key] = [unit, mass, steps + 1]

    def _look(self, evidence: Evidence) -> Shown:
        keys = evidence.by(self.key)
        if not self.log:
            ones = torch.ones(len(keys), dtype=torch.float64, device=evidence.device)
            return Shown(keys, ones, ones[0])
        losses = evidence.losses.to(evidence.device)
        _losses.require(losses >= 0, evidence, "db_mtl: losses must not be negative, they have no logarithm", INSTEAD)
        inverted = f"db_mtl: losses must be zero or at least {SMALLEST:g}, rows are divided by them"
        _losses.require((losses == 0) | (losses >= SMALLEST), evidence, inverted, INSTEAD)
        some = losses > 0
        safe = torch.where(some, losses, 1.0)
        least = torch.where(some | ~some.any(), safe, torch.inf).min()
        return Shown(keys, torch.where(some, 1 / safe, 0.0), least)

    def _counts(self, key: str, held: Row | None) -> list[float]:
        return [0.0, 0.0, 0.0] if held is None else self.counts[key]

    def _kept(self, steps: Number) -> Number:
        kept: Number = self.beta / (steps + 1) ** self.sigma
        return kept


def advanced(unit: Number, mass: Number, kept: Number, factor: Number) -> tuple[Number, Number, Number]:
    """The averages of the factors and of ones after a step, and the share by which b_i / unit_i moves to the row.

    With b = unit · c, the average b ← kept · b + (1 − kept) · factor · g is c ← c + share · (g − c): c is a mean of the
    rows as they were given, whatever the losses' size, and begins with the first.
    """
    unit = kept * unit + (1 - kept) * factor
    mass = kept * mass + (1 - kept)
    return unit, mass, (1 - kept) * factor / (unit + (unit == 0))


def representable(rows: Rows, longest: Tensor) -> bool:
    """Whether rows hold finite numbers, of which only lengths above the largest one leave a doubt."""
    values = named(rows).values()
    largest = min(torch.finfo(value.dtype).max for value in values)
    return bool(longest <= largest) or all(bool(value.isfinite().all()) for value in values)


def stretched(rows: Tensor, factors: Tensor) -> Tensor:
    """Rows `[tasks, *shape]` times factors `[tasks]`, in their own memory unless there is a graph."""
    weights = factors.to(rows.device, rows.dtype).reshape(-1, *[1] * (rows.dim() - 1))
    return rows * weights if rows.requires_grad or weights.requires_grad else rows.mul_(weights)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=DBMTL,
        summary="averages gradients of log losses over steps, and makes all as long as the longest",
        reference="Lin et al. 2023, arXiv 2308.12029",
        traits={"differentiable", "stateful", "momentum", "scale_equivariant", "rotation_equivariant"},
        needs={"rows", "losses"},
    )
