"""DB-MTL: gradients of the logarithms of the losses, averaged over steps and scaled to equal length."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, OptionError, StageResult, Step, as_jacobian, hookimpl, keyed
from gradhomog_plugins import _losses, _row_state
from gradhomog_plugins._row_state import RowState

WITHOUT_LOG = "Use log=False to balance the gradients without their losses."

# Smallest nonzero loss: the sum of several of its inverses is still finite in float64.
SMALLEST = 1e-300


class DBMTL(Homogenizer):
    """Average the gradients of log L_i over steps, and scale all averages to the length of the longest.

        ĝ_i = ∇ log L_i = g_i / L_i,  b_i ← ĝ_i + β/t^σ (b_i − ĝ_i),  b_i = 0 before the first step
        b̂_i = b_i / (1 − Π_s β/s^σ), which corrects the start from zero
        d = 1/N · min_j L_j · Σ_i (max_k ‖b̂_k‖ / ‖b̂_i‖) b̂_i
        paper's scale: b_i in place of b̂_i, and without the factor 1/N · min_j L_j

    Args:
        beta: in [0, 1), the weight of the previous average; 0 does not average.
        sigma: ≥ 0, the rate at which the weight of the previous average falls.
        log: True uses ∇ log L_i; False uses g_i and ignores the losses.

    Use it when losses or gradient norms differ by orders of magnitude and single mini-batches are noisy: the logarithm
    removes the unit of each loss, the scaling removes the norm of each average. It does not change the cosines of the
    averages, so it does not resolve conflicts. It is harmful where the gradient of a task is only noise, because that
    task gets the same length as the others.

    With the factors 1/N · min_j L_j and the correction, neither the magnitude of the losses nor the number of steps
    changes the length of d. A task whose average is zero has a zero row. The logarithm of a loss of zero has no
    gradient, and a loss that cannot be negative has a zero gradient there: its task adds zero to its average. Negative
    losses cause an error, and so do losses so near zero that rows overflow their dtype. t counts the steps of one task.

    Differentiable in rows and losses, with the averages before the step as constants.

    State: a row for every key, in float32 or float64, N × params numbers in all. Rows with other names or shapes
    restart it, and so does an average that overflows the rows' dtype, after a loss near zero.

    Cost: about five reads and three writes of N × params numbers, and the memory of one more copy of the rows.

    Source: Lin et al. 2023, "Dual-Balancing for Multi-Task Learning", arXiv 2308.12029, algorithm 1.

    Deviations: (1) No epsilon; the reference code (LibMTL) adds 1e-8 to L_i and to ‖b_i‖. (2) t counts the steps of
    each task; LibMTL counts the steps of all tasks together, which is the same for tasks that are in every batch.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("db_mtl")
    >>> pipe.combine(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), losses=[1.0, 1.0])
    tensor([1.5000, 1.5000])
    """

    state_names = {"averages": RowState, **dict.fromkeys(("units", "weight_sums", "counts"), dict[str, float])}

    def __init__(
        self, beta: Annotated[float, Interval(ge=0, lt=1)] = 0.9, sigma: Annotated[float, Ge(0)] = 0.0, log: bool = True
    ) -> None:
        self.beta, self.sigma, self.log = beta, sigma, log
        self.needs = {"jacobian", "losses"} if log else {"jacobian"}
        self.averages: RowState = {}
        self.units: dict[str, float] = {}  # the averages of 1/L_i
        self.weight_sums: dict[str, float] = {}  # 1 − Π_s β/s^σ, which corrects the start from zero
        self.counts: dict[str, float] = {}  # t

    def rows(self, step: Step) -> StageResult:
        return self._moved(step, *self._saved(step))

    def _moved(
        self, step: Step, averages: RowState, units: Mapping[str, float], sums: Mapping[str, float],
        counts: Mapping[str, float],
    ) -> StageResult:  # fmt: skip
        """Return the rows after one step of the averages b_i = unit_i · average_i, from these states."""
        keys, known = step.names, bool(averages)
        inverses, least = self._inverse_losses(step)
        kept = self.beta / (keyed.read(counts, keys, 0.0) + 1) ** self.sigma
        new_units = kept * keyed.read(units, keys, 0.0) + (1 - kept) * inverses
        new_sums = kept * keyed.read(sums, keys, 0.0) + (1 - kept)
        shares = (1 - kept) * inverses / (new_units + (new_units == 0))
        # Weighted means of the given rows: finite for losses of any size.
        moved = _row_state.moved(averages, keys, step.jacobian, shares)
        norms = as_jacobian(moved).norms()
        lengths = norms * new_units / new_sums * least
        nonzero, longest = lengths > 0, lengths.max()
        stretch = torch.where(nonzero, longest / torch.where(nonzero, norms, 1.0), 0.0)
        stretched = _row_state.in_jacobian(step, moved).mix(stretch)
        # A long average, or one of subnormal numbers: its loss was near zero, or its row was.
        if max(longest, stretch.max()) > torch.finfo(step.dtype).max and not all(stretched.finite_tasks()):
            if known:  # of an earlier step: it would make every later step fail
                return self._moved(step, {}, {}, {}, {})
            raise OptionError(
                f"the averages of ∇ log L have norms from {lengths[nonzero].min().item():.3g} (task "
                f"{keys[int(torch.where(nonzero, lengths, torch.inf).argmin())]!r}) to {longest.item():.3g} (task "
                f"{keys[int(lengths.argmax())]!r}). All rows are scaled to the longest, which overflows {step.dtype}. "
                f"A loss or a gradient is near zero. {WITHOUT_LOG}"
            )
        scale = step.tasks * (norms * new_units).max() / torch.where(longest > 0, longest, 1.0)
        return StageResult(stretched, aux=(scale, moved, new_units, new_sums, keyed.read(counts, keys, 0.0) + 1))

    def paper_scale(self, step: Step) -> Tensor:
        scale: Tensor = step.aux[0]
        return scale

    def update(self, step: Step) -> Mapping[str, Any]:
        keys, (_, moved, new_units, new_sums, new_counts) = step.names, step.aux
        averages, units, sums, counts = self._saved(step)
        units = keyed.write(units, keys, new_units)
        if len(set(keys)) < len(keys):  # the mean of b_i = unit_i · average_i, divided by the mean of their units
            together = keyed.read(units, keys, 0.0)
            shares = torch.where(together > 0, new_units / together, 1.0)
            moved = {name: value * _row_state.broadcast_per_task(shares, value) for name, value in moved.items()}
        return {
            "averages": _row_state.write(averages, keys, moved),
            "units": units,
            "weight_sums": keyed.write(sums, keys, new_sums),
            "counts": keyed.write(counts, keys, new_counts),
        }

    def _saved(self, step: Step) -> tuple[Any, ...]:
        return _row_state.fitting(step, self.averages, self.units, self.weight_sums, self.counts)

    def _inverse_losses(self, step: Step) -> tuple[Tensor, Tensor]:
        """Return 1/L_i (zero for L_i = 0), float64 `[tasks]`, and the smallest nonzero loss, or 1 if all are zero."""
        if not self.log:
            ones = torch.ones(step.tasks, dtype=torch.float64)
            return ones, ones[0]
        losses = _losses.nonnegative(step, "because of their logarithm", WITHOUT_LOG)
        inverted = f"losses must be zero or at least {SMALLEST:g}, because rows are divided by them"
        _losses.require_valid((losses == 0) | (losses >= SMALLEST), step, inverted, WITHOUT_LOG)
        nonzero = losses > 0
        safe = torch.where(nonzero, losses, 1.0)
        least = torch.where(nonzero | ~nonzero.any(), safe, torch.inf).min()
        return torch.where(nonzero, 1 / safe, 0.0), least


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=DBMTL,
        summary="averages gradients of log losses over steps and scales them to equal length",
        reference="Lin et al. 2023, arXiv 2308.12029",
        traits={"differentiable", "stateful", "momentum", "scale_equivariant", "rotation_equivariant"},
        needs={"jacobian", "losses"},
    )
