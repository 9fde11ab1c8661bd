"""DB-MTL: gradients of the logarithms of the losses, averaged over steps and scaled to equal length."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, OptionError, StageResult, Step, as_jacobian, hookimpl, keyed
from gradhomog_plugins import _losses, _row_state
from gradhomog_plugins._row_state import RowState

WITHOUT_LOG = "Use log=False to balance the gradients without their losses."

# Smallest nonzero loss: the sum of several of its inverses is still finite in float64.
SMALLEST = 1e-300


class NewAverages(NamedTuple):
    """The averages of a batch's tasks after this step: b_i = unit_i · average_i.

    Attributes:
        averages: weighted means of the given rows, finite for losses of any size, `[tasks, *shape]` by parameter.
        units: the averages of 1/L_i, float64 `[tasks]`.
        weight_sums: the sums of the weights in the averages, 1 − Π_s β/s^σ, which correct the start from zero, float64
            `[tasks]`.
        counts: t, float64 `[tasks]`.
        paper_scale: N · max_k ‖b_k‖ over the length of the rows.
    """

    averages: dict[str, Tensor]
    units: Tensor
    weight_sums: Tensor
    counts: Tensor
    paper_scale: Tensor


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

    state_names = ("averages", "units", "weight_sums", "counts")

    def __init__(
        self, beta: Annotated[float, Interval(ge=0, lt=1)] = 0.9, sigma: Annotated[float, Ge(0)] = 0.0, log: bool = True
    ) -> None:
        self.beta, self.sigma, self.log = beta, sigma, log
        self.needs = {"jacobian", "losses"} if log else {"jacobian"}
        self.averages: RowState = {}
        self.units: dict[str, float] = {}
        self.weight_sums: dict[str, float] = {}
        self.counts: dict[str, float] = {}

    def rows(self, step: Step) -> StageResult:
        return self._after(step, _row_state.fitting(self.averages, step.jacobian.row_like()))

    def _after(self, step: Step, kept: RowState) -> StageResult:
        """Return the result of a step after the averages `kept`, or of a first step if there are none."""
        keys = step.names
        inverses, least = self._inverse_losses(step)
        units, weight_sums, counts = (
            keyed.read(state if kept else {}, keys, 0.0) for state in (self.units, self.weight_sums, self.counts)
        )
        units, weight_sums, shares = update_averages(
            units, weight_sums, self.beta / (counts + 1) ** self.sigma, inverses
        )
        averages = _row_state.moved(kept, keys, step.jacobian, shares)
        norms = as_jacobian(averages).norms()
        lengths = norms * units / weight_sums * least
        nonzero, longest = lengths > 0, lengths.max()
        stretch = torch.where(nonzero, longest / torch.where(nonzero, norms, 1.0), 0.0)
        stretched = step.jacobian.replace(_row_state.cast_like(averages, step.jacobian.row_like())).mix(stretch)
        # A long average, or one of subnormal numbers: its loss was near zero, or its row was.
        if max(longest, stretch.max()) > torch.finfo(step.dtype).max and not all(stretched.finite_tasks()):
            if kept:  # of an earlier step: it would make every later step fail
                return self._after(step, {})
            raise OptionError(
                f"db_mtl: the averages of ∇ log L have norms from {lengths[nonzero].min().item():.3g} (task "
                f"{keys[int(torch.where(nonzero, lengths, torch.inf).argmin())]!r}) to {longest.item():.3g} (task "
                f"{keys[int(lengths.argmax())]!r}). All rows are scaled to the longest, which overflows {step.dtype}. "
                f"A loss or a gradient is near zero. {WITHOUT_LOG}"
            )
        paper = step.tasks * (norms * units).max() / torch.where(longest > 0, longest, 1.0)
        return StageResult(stretched, aux=NewAverages(averages, units, weight_sums, counts + 1, paper))

    def paper_scale(self, step: Step) -> Tensor:
        factor: Tensor = step.aux.paper_scale
        return factor

    def update(self, step: Step) -> Mapping[str, Any]:
        keys, new = step.names, step.aux
        kept, averages = _row_state.fitting(self.averages, step.jacobian.row_like()), new.averages
        units = keyed.write(self.units if kept else {}, keys, new.units)
        if len(set(keys)) < len(keys):  # the mean of b_i = unit_i · average_i, divided by the mean of their units
            together = keyed.read(units, keys, 0.0)
            shares = torch.where(together > 0, new.units / together, 1.0)
            averages = {name: value * _row_state.broadcast_per_task(shares, value) for name, value in averages.items()}
        return {
            "averages": _row_state.write(kept, keys, averages),
            "units": units,
            "weight_sums": keyed.write(self.weight_sums if kept else {}, keys, new.weight_sums),
            "counts": keyed.write(self.counts if kept else {}, keys, new.counts),
        }

    def _inverse_losses(self, step: Step) -> tuple[Tensor, Tensor]:
        """Return 1/L_i (zero for L_i = 0), float64 `[tasks]`, and the smallest nonzero loss, or 1 if all are zero."""
        if not self.log:
            ones = torch.ones(step.tasks, dtype=torch.float64)
            return ones, ones[0]
        losses = step.losses
        _losses.require_valid(
            losses >= 0, step, "db_mtl: losses must not be negative, because of their logarithm", WITHOUT_LOG
        )
        inverted = f"db_mtl: losses must be zero or at least {SMALLEST:g}, because rows are divided by them"
        _losses.require_valid((losses == 0) | (losses >= SMALLEST), step, inverted, WITHOUT_LOG)
        nonzero = losses > 0
        safe = torch.where(nonzero, losses, 1.0)
        least = torch.where(nonzero | ~nonzero.any(), safe, torch.inf).min()
        return torch.where(nonzero, 1 / safe, 0.0), least


def update_averages(
    units: Tensor, weight_sums: Tensor, kept: Tensor, inverses: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return units and weight sums after a step, and the factor by which the average moves towards the row.

    With b = unit · c, the step b ← kept · b + (1 − kept) · g / L is c ← c + share · (g − c): c is a weighted mean of
    the given rows, finite for losses of any size, and is the first row after the first step.
    """
    units = kept * units + (1 - kept) * inverses
    weight_sums = kept * weight_sums + (1 - kept)
    return units, weight_sums, (1 - kept) * inverses / (units + (units == 0))


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=DBMTL,
        summary="averages gradients of log losses over steps and scales them to equal length",
        reference="Lin et al. 2023, arXiv 2308.12029",
        traits={"differentiable", "stateful", "momentum", "scale_equivariant", "rotation_equivariant"},
        needs={"jacobian", "losses"},
    )
