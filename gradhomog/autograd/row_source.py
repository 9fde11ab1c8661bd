"""The rows of a step from losses: their source, which is this process or an exchange of ranks, and rows on first use.

Norms and inner products can do without the rows, a weighted mean too.
"""

import functools
import logging
import operator
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, final

import torch
from torch import Tensor

from gradhomog.autograd.derivatives import Derivatives, FeatureDerivatives, Gradients
from gradhomog.autograd.inputs import Memory, measured_tensors
from gradhomog.autograd.lockstep import Lockstep, check_direction
from gradhomog.autograd.loss_graph import Reachability
from gradhomog.autograd.loss_step import LossStep
from gradhomog.errors import NonfiniteError, OptionError
from gradhomog.rows import DenseRows, Direction, Jacobian, LazyRows, PerTaskRows, all_finite
from gradhomog.rows.arithmetic import Product, squared_norms
from gradhomog.rows.storage import Rows, StoredRows
from gradhomog.step.step import Step

_logger = logging.getLogger("gradhomog")

LeafGradients = list[tuple[Tensor, Tensor]]
"""Leaves with the gradients to add to their `.grad`."""


class RowSource:
    """The source of the rows of one step: of this process alone, and, as the base class, of the ranks of a group.

    Args:
        step: the losses and options.
        derivatives: the derivatives of the losses of this process.

    Attributes:
        exchanged: what ranks exchange, see `StepReport`.
        written_before: for errors, what was written before the rows were complete.
    """

    exchanged: Literal["nothing", "rows", "directions"] = "nothing"
    written_before = ""

    def __init__(self, step: LossStep, derivatives: Derivatives) -> None:
        self._step, self._derivatives, self._graph = step, derivatives, derivatives.graph
        self._options, self._communicator = step.options, step.options.communicator

    @property
    def reads_rows(self) -> bool:
        """True if the step requires the rows themselves, not only norms, inner products or a weighted mean."""
        options, pipe = self._options, self._options.pipe
        drop = pipe.nonfinite == "drop" and not self._derivatives.scaled
        return drop or options.per != "model" or pipe.debug or "jacobian" in pipe.requirements.statistics

    def overflow(self) -> None:
        """Called instead of the rest if the rows overflow and a gradient scaler will skip the step."""

    def make_step(self) -> Step:
        """Return the record of the step for the pipeline."""
        step, pipe = self._step, self._options.pipe
        features, feature_grads = self._derivatives.at_stages() if pipe.requirements.reads_features else ([], [])
        with torch.set_grad_enabled(self._derivatives.create_graph):
            losses = torch.stack(self._graph.tasks.losses).double()
        rows: Rows
        if self._options.level == "features":
            rows = DenseRows(of_features(self._derivatives).feature_rows())
        else:
            on_ranks = self._communicator.size > 1
            # The losses need not depend on the shared parameters if others do, now or in earlier steps.
            may_be_unused = bool(pipe.requirements.choosing) and (self._graph.use_shared or pipe.steps > 0)
            memory = "rows" if on_ranks else self._options.memory
            self._rows = LossRows(self._derivatives, memory, may_be_unused or on_ranks)
            rows = self.measured(self._rows)
            if self.reads_rows:
                rows.stored()
        return Step(
            step.keys(self._graph.tasks.slots), Jacobian(rows), losses, features, feature_grads, step.targets,
            step.kernel_traces, pipe.steps,
        )  # fmt: skip

    def measured(self, rows: LazyRows) -> "LazyRows | MeasuredRows":
        """Return the rows with the norms and inner products of the gradients w.r.t. `measure`."""
        if self._options.measure is None:
            return rows
        tensors = measured_tensors(self._options.measure, self._graph.shared)
        return MeasuredRows(rows, tensors, functools.partial(self.measured_rows, tensors))

    def measured_rows(self, tensors: Mapping[str, Tensor]) -> StoredRows:
        """Return the gradients w.r.t. some tensors, computed by passes from the losses to them."""
        rows = self._derivatives.rows_of(tensors)
        require_measured(part is not None for parts in rows.values() for part in parts)
        return PerTaskRows(rows, tensors, 1 / self._derivatives.factor)

    def to_parameters(self, direction: Direction) -> tuple[Direction, Collection[str]]:
        """Return the direction of the shared parameters, and the names of those that no loss depends on."""
        if self._options.level != "features":
            return direction, self._rows.unused
        gradients = backpropagate(self._derivatives, direction)
        unused = {name for name, gradient in gradients.items() if gradient is None}
        require_used(self._graph.shared, unused)
        found = zeros_for_missing(gradients.values(), self._graph.shared)
        return finite_direction(found, self._derivatives.factor), unused

    def head_gradients(self, factors: Mapping[int, float]) -> LeafGradients:
        """Return the gradients of parameters that are not shared, times the factor of their task, by slot."""
        return [
            (leaf, gradient if factors[slot] == 1 else factors[slot] * gradient)
            for slot, leaf, gradient in self._derivatives.head_gradients()
            if slot in factors and gradient is not None  # a task may have been dropped
        ]


def zeros_for_missing(gradients: Iterable[Tensor | None], like: Mapping[str, Tensor]) -> Direction:
    """Return gradients by name, with zeros for parameters that no loss depends on."""
    return {
        name: torch.zeros_like(one, requires_grad=False) if gradient is None else gradient
        for (name, one), gradient in zip(like.items(), gradients, strict=True)
    }


def of_features(derivatives: Derivatives) -> FeatureDerivatives:
    """Return the derivatives of a step with `level="features"`."""
    assert isinstance(derivatives, FeatureDerivatives)  # because features are then required
    return derivatives


def backpropagate(derivatives: Derivatives, direction: Mapping[str, Tensor]) -> dict[str, Tensor | None]:
    """Backpropagate a homogenized gradient w.r.t. the features; the result has the factor of the gradient scaler."""
    graph, pairs = derivatives.graph, zip(direction.values(), derivatives.graph.features, strict=True)
    grads: Gradients = [(derivatives.factor * grad).to(feature.dtype) for grad, feature in pairs]
    return dict(zip(graph.shared, of_features(derivatives).backpropagate(grads), strict=True))


def finite_direction(gradients: Mapping[str, Tensor], factor: float) -> Direction:
    """Return a direction that was backpropagated through the shared part, without the factor.

    Raises:
        NonfiniteError.
    """
    require_finite(gradients)
    return {name: gradient / factor for name, gradient in gradients.items()}


def require_finite(gradients: Mapping[str, Tensor]) -> None:
    """Raise unless the gradients of the shared parameters are finite, where those of other tensors are.

    Raises:
        NonfiniteError.
    """
    if not all_finite(gradients.values()):
        raise NonfiniteError(
            "the gradient of the shared parameters is not finite, although every task's gradient w.r.t. the features "
            "or the tensors of `measure` is. Lower the learning rate. Nothing was changed."
        )


def require_measured(found: Iterable[bool]) -> None:
    """Raise if no loss has a gradient w.r.t. a tensor of `measure`.

    Raises:
        OptionError.
    """
    if not any(found):
        raise OptionError("the losses must depend on the tensors of `measure`; they depend on none of them.")


@final
class MeasuredRows(Rows):
    """Rows with the norms and inner products of gradients w.r.t. other tensors.

    Args:
        rows: those of the shared parameters, of which only a weighted sum is computed, by one pass.
        measured: the other tensors.
        compute: returns the gradients w.r.t. them.
    """

    def __init__(self, rows: LazyRows, measured: Mapping[str, Tensor], compute: Callable[[], StoredRows]) -> None:
        self._rows, self.like, self._compute, self.computed = rows, measured, compute, False
        self.tasks, self.requires_grad = rows.tasks, rows.requires_grad

    def stored(self) -> StoredRows:
        # After the pass, nothing can be measured: the error is that of the rows.
        return self._measured if self.computed or not self._rows.freed else self._rows.stored()

    @functools.cached_property
    def _measured(self) -> StoredRows:
        rows, self.computed = self._compute(), True
        return rows

    def products(self, product: Product, by_block: bool) -> Tensor:
        return self.stored().products(product, by_block)

    def finite_tasks(self) -> list[bool]:
        return self.stored().finite_tasks()

    def weighted_sum(self, weights: Tensor, divisor: float = 1) -> Direction:
        direction = self._rows.weighted_sum(weights, divisor)
        if self.computed and all(self.finite_tasks()):  # otherwise the error names the task
            require_finite(direction)
        return direction


@final
class LossRows(LazyRows):
    """The gradients of the losses, computed on demand.

    Args:
        derivatives: the derivatives of the losses.
        memory: see `gradhomog.backward`.
        may_be_unused: do not raise if no loss depends on any of the shared parameters.

    Attributes:
        unused: names of parameters that no loss depends on; available after the rows or their mean were computed.
    """

    def __init__(self, derivatives: Derivatives, memory: Memory = "rows", may_be_unused: bool = False) -> None:
        self._derivatives, self._memory, self._may_be_unused = derivatives, memory, may_be_unused
        self.like, self.tasks = derivatives.graph.shared, len(derivatives.graph.tasks.losses)
        self.requires_grad = derivatives.create_graph
        self.unused: frozenset[str] = frozenset()

    def compute(self) -> PerTaskRows:
        """Compute the rows by one backward pass per task."""
        rows = self._derivatives.rows()
        self._note_unused([name for name, gradients in rows.items() if all(part is None for part in gradients)])
        return PerTaskRows(rows, self.row_like(), 1 / self._derivatives.factor)

    def row_like(self) -> Mapping[str, Tensor]:
        metric = self._derivatives.metric
        return self.like if metric is None else metric.row_like(self.like)

    def products(self, product: Product, by_block: bool) -> Tensor:
        if self._gramians is None:
            return super().products(product, by_block)
        zeros = torch.zeros(self.tasks, self.tasks, dtype=torch.float64)
        blocks = torch.stack([self._gramians.get(name, zeros) for name in self.like])
        if product is squared_norms:
            blocks = blocks.diagonal(dim1=1, dim2=2)
        return blocks if by_block else blocks.sum(0)

    def finite_tasks(self) -> list[bool]:
        if self._gramians is None:
            return super().finite_tasks()
        finite: list[bool] = self.products(squared_norms, by_block=False).isfinite().tolist()
        # A square may have overflowed.
        return finite if self.freed or all(finite) else super().finite_tasks()

    def sum_in_one_pass(self, weights: Tensor, divisor: float) -> Direction | None:
        total, factor = self._derivatives.weighted_sum(weights / divisor), self._derivatives.factor
        if total is None:
            return None
        self.freed = not self._derivatives.retain_graph
        self._note_unused(self._unreached(total, weights))
        direction = zeros_for_missing(total, self.like)
        if factor != 1:
            direction = {name: part / factor for name, part in direction.items()}
        if gramians := self.__dict__.get("_gramians"):
            check_direction(direction, weights.detach() / divisor, gramians, self._eps)
        return direction

    @functools.cached_property
    def _gramians(self) -> Mapping[str, Tensor] | None:
        """The Gramian of each parameter that a loss depends on, computed without rows; None if there are rows."""
        if self._memory == "rows" or self.freed or self.computed or self.requires_grad or self.tasks == 1:
            return None
        rows = self.tasks * sum(value.numel() * value.dtype.itemsize for value in self.like.values())
        if self._memory == "auto" and rows <= _free_memory(next(iter(self.like.values())).device, rows) / 2:
            return None
        graph, starts = self._derivatives.graph, self._derivatives.starts()
        if starts is None:
            return None
        known = bool(self._derivatives.unshared_gradients)
        unshared = [()] * self.tasks if known else graph.unshared_leaves
        lockstep = Lockstep([outputs for outputs, _ in starts], self.like, unshared)
        if self._memory == "auto" and lockstep.peak > rows / 2:
            return None
        _log_peaks(self.tasks, rows >> 20, lockstep.peak >> 20)
        self._eps = lockstep.eps
        scale = 1 / self._derivatives.factor
        metric = self._derivatives.metric
        gramians, heads = lockstep.gramians([grads for _, grads in starts], graph.passes, scale, metric)
        if not known:
            self._derivatives.unshared_gradients = heads
        self._note_unused([name for name in self.like if name not in gramians])
        return gramians

    def _unreached(self, total: Gradients, weights: Tensor) -> list[str]:
        """Return the names of parameters without a gradient in a sum that skips tasks of weight 0."""
        names = [name for name, part in zip(self.like, total, strict=True) if part is None]
        losses = self._derivatives.graph.tasks.losses
        skipped = [loss for loss, weight in zip(losses, weights.tolist(), strict=True) if not weight] if names else []
        if not skipped:
            return names
        reached = Reachability(skipped, leaves=self.like.values())
        bits = functools.reduce(operator.or_, reached.bits)
        return [name for name in names if not reached.bits_of([self.like[name]]) & bits]

    def _note_unused(self, names: Sequence[str]) -> None:
        self.unused = frozenset(names)
        if not self._may_be_unused:
            require_used(self.like, self.unused)


def require_used(shared: Mapping[str, Tensor], unused: Collection[str]) -> None:
    """Raise if no loss depends on any of the shared parameters.

    Raises:
        OptionError.
    """
    if len(unused) == len(shared):
        some = list(shared)
        raise OptionError(
            f"the losses must depend on the shared parameters; they depend on none of {', '.join(some[:4])}"
            f"{', …' if len(some) > 4 else ''}. Either the graph is cut (detach, a copy of the model), or these are "
            "parameters of another model."
        )


def _free_memory(device: torch.device, needed: int) -> int:
    """Return the bytes that are free on a GPU, or else all of the machine; those of a GPU too if little is needed."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        if needed < total / 256:  # the driver's answer may take longer than a small step
            return total
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if sys.platform == "win32":  # without sysconf
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@functools.cache
def _log_peaks(tasks: int, rows: int, lockstep: int) -> None:
    _logger.info(
        "the gradients of %d tasks take %d MiB; inner products are computed without them, in about %d MiB and one more "
        "backward pass. Pass memory='rows' to keep the gradients.", tasks, rows, lockstep,
    )  # fmt: skip
