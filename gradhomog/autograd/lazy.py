"""A Jacobian that is computed on first use; norms and inner products can be computed without its rows, and a weighted
mean by one backward pass."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from gradhomog.autograd.derivatives import Derivatives
from gradhomog.autograd.lockstep import Lockstep, check_direction
from gradhomog.autograd.loss_step import Memory
from gradhomog.errors import NonfiniteError, OptionError
from gradhomog.rows import Direction, Jacobian, PerTaskJacobian

_logger = logging.getLogger("gradhomog")


@final
class LazyJacobian(Jacobian):
    """The gradients of the losses, computed on demand.

    A pipeline that reads neither norms, inner products nor rows (weights from losses, or from features) reads only the
    weighted mean at its end. This takes one backward pass instead of N.

    Args:
        derivatives: the derivatives of the losses.
        eager: compute the rows in the constructor.
        may_be_unused: do not raise if no loss depends on any of the shared parameters.
        memory: see `gradhomog.backward`.

    Attributes:
        unused: names of parameters that no loss depends on; available after the rows or their mean were computed.
    """

    def __init__(
        self, derivatives: Derivatives, eager: bool = False, memory: Memory = "rows", may_be_unused: bool = False
    ) -> None:
        self.derivatives, self._may_be_unused = derivatives, may_be_unused
        self._shared: Mapping[str, Tensor] = derivatives.graph.shared
        self.names = tuple(self._shared)
        self.tasks = len(derivatives.graph.losses)
        first = next(iter(self._shared.values()))
        self.device = first.device
        self.dtype = min((value.dtype for value in self._shared.values()), key=lambda dtype: dtype.itemsize)
        self.requires_grad = derivatives.graph.create_graph
        self.unused: frozenset[str] = frozenset()
        self._freed = False
        self._memory = memory
        if eager:
            _ = self.per_task

    @functools.cached_property
    def per_task(self) -> PerTaskJacobian:
        """The rows: one backward pass per task."""
        rows = self.derivatives.rows()
        self._note_unused([name for name, gradients in rows.items() if all(part is None for part in gradients)])
        return PerTaskJacobian(rows, self._shared, 1 / self.derivatives.graph.factor)

    def materialize(self) -> dict[str, Tensor]:
        return self.per_task.materialize()

    def row_like(self) -> Mapping[str, Tensor]:
        return self._shared

    def row(self, task: int) -> Direction:
        return self.per_task.row(task)

    def select(self, tasks: Sequence[int]) -> Jacobian:
        return self.per_task.select(tasks)

    def select_parameters(self, names: Sequence[str]) -> Jacobian:
        return self.per_task.select_parameters(names)

    def detach(self) -> Jacobian:
        return self.per_task.detach() if self.derivatives.graph.create_graph else self

    def finite_tasks(self) -> list[bool]:
        if self._gramians is not None:
            finite: list[bool] = self.squared_norms().isfinite().tolist()
            if self._freed or all(finite):  # otherwise a square may have overflowed
                return finite
        if self._freed:
            raise error_of_one_pass()
        return self.per_task.finite_tasks()

    def compute_gramians(self) -> Tensor:
        if self._gramians is None:
            return self.per_task.compute_gramians()
        zeros = torch.zeros(self.tasks, self.tasks, dtype=torch.float64)
        return torch.stack([self._gramians.get(name, zeros) for name in self.names])

    def compute_squared_norms(self) -> Tensor:
        if self._gramians is not None:
            return self.compute_gramians().diagonal(dim1=1, dim2=2)
        if self._freed:
            raise error_of_one_pass()
        return self.per_task.compute_squared_norms()

    def compute_total_gramian(self) -> Tensor:
        return self.per_task.total_gramian if self._gramians is None else super().compute_total_gramian()

    def compute_total_squared_norms(self) -> Tensor:
        if self._gramians is None and not self._freed:
            return self.per_task.total_squared_norms
        return super().compute_total_squared_norms()

    @functools.cached_property
    def _gramians(self) -> Mapping[str, Tensor] | None:
        """The Gramian of each parameter that a loss depends on, computed without rows; None if there are rows."""
        starts = None if self._freed or "per_task" in self.__dict__ else self.derivatives.starts()
        if self._memory == "rows" or starts is None or self.requires_grad or self.tasks == 1:
            return None
        rows = self.tasks * sum(value.numel() * value.dtype.itemsize for value in self._shared.values())
        if self._memory == "auto" and rows <= _free_memory(self.device, rows) / 2:
            return None
        graph = self.derivatives.graph
        lockstep = Lockstep(starts.outputs, self._shared, starts.unshared_leaves)
        if self._memory == "auto" and lockstep.peak > rows / 2:
            return None
        _log_peaks(self.tasks, rows >> 20, lockstep.peak >> 20)
        self._eps = lockstep.eps
        gramians, heads = lockstep.gramians(starts.output_grads, 1 / graph.factor, graph.compiled)
        if starts.unshared_leaves is graph.unshared_leaves:
            self.derivatives.unshared_gradients = heads
        self._note_unused([name for name in self.names if name not in gramians])
        return gramians

    def weighted_mean(self, weights: Tensor) -> Direction:
        if "per_task" in self.__dict__ or (total := self.derivatives.weighted_sum(weights)) is None:
            return self.per_task.weighted_mean(weights)
        self._freed = not self.derivatives.graph.retain_graph
        self._note_unused([name for name, part in zip(self._shared, total, strict=True) if part is None])
        mean = [
            torch.zeros_like(like, requires_grad=False) if part is None else part
            for like, part in zip(self._shared.values(), total, strict=True)
        ]
        scale = 1 / (self.tasks * self.derivatives.graph.factor)
        # Not in place: autograd may return one gradient for two parameters.
        direction = dict(zip(self._shared, torch._foreach_mul(mean, scale), strict=True))
        if gramians := self.__dict__.get("_gramians"):
            check_direction(direction, weights.detach() / self.tasks, gramians, self._eps)
        return direction

    def _note_unused(self, names: Sequence[str]) -> None:
        self.unused = frozenset(names)
        if not self._may_be_unused:
            require_used(self._shared, self.unused)


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


def error_of_one_pass() -> NonfiniteError:
    """Return the error for a weighted mean that is not finite, whose pass has freed the graph."""
    return NonfiniteError(
        "the gradient of the shared parameters is not finite, although every loss is. Lower the learning rate. "
        "Nothing was changed. All tasks share one backward pass; to identify the task, create the pipeline by "
        'gradhomog.pipeline(..., nonfinite="drop").'
    )


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
