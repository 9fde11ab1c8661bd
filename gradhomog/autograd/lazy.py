"""A Jacobian that is computed on first use; if only a weighted mean is read, one backward pass suffices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from gradhomog.autograd.derivatives import Derivatives
from gradhomog.errors import NonfiniteError, OptionError
from gradhomog.rows import Direction, Jacobian, PerTaskJacobian


@final
class LazyJacobian(Jacobian):
    """The gradients of the losses, computed on demand.

    A pipeline that reads neither norms, inner products nor rows (weights from losses, or from features) reads only the
    weighted mean at its end. This takes one backward pass instead of N.

    Args:
        derivatives: the derivatives of the losses.
        eager: compute the rows in the constructor.
        may_be_unused: do not raise if no loss depends on any of the shared parameters.
        chunks: for norms and inner products, compute the rows of this many groups of parameters one after the other,
            and keep none.

    Attributes:
        unused: names of parameters that no loss depends on; available after the rows or their mean were computed.
    """

    def __init__(
        self, derivatives: Derivatives, eager: bool = False, chunks: int = 1, may_be_unused: bool = False
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
        self._chunks = _even_groups(self._shared, chunks) if chunks > 1 else []
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
        if self._freed:
            raise error_of_one_pass()
        return self.per_task.finite_tasks()

    def compute_gramians(self) -> Tensor:
        if self._whole:
            return self.per_task.compute_gramians()
        return self._by_chunks(PerTaskJacobian.compute_gramians)

    def compute_squared_norms(self) -> Tensor:
        if self._freed:
            _ = self.finite_tasks()  # raises, because the graph is freed
        if self._whole:
            return self.per_task.compute_squared_norms()
        return self._by_chunks(PerTaskJacobian.compute_squared_norms)

    def compute_total_gramian(self) -> Tensor:
        return self.per_task.total_gramian if self._whole else super().compute_total_gramian()

    def compute_total_squared_norms(self) -> Tensor:
        if self._whole and not self._freed:
            return self.per_task.total_squared_norms
        return super().compute_total_squared_norms()

    @property
    def _whole(self) -> bool:
        return not self._chunks or "per_task" in self.__dict__

    def _by_chunks(self, product: Callable[[PerTaskJacobian], Tensor]) -> Tensor:
        found: dict[str, Tensor] = {}
        for names in self._chunks:
            rows, like = self.derivatives.some_rows(names), {name: self._shared[name] for name in names}
            some = PerTaskJacobian(rows, like, 1 / self.derivatives.graph.factor)
            found.update(zip(names, product(some).unbind(), strict=True))
        return torch.stack([found[name] for name in self.names])

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
        return dict(zip(self._shared, torch._foreach_mul(mean, scale), strict=True))

    def _note_unused(self, names: Sequence[str]) -> None:
        self.unused = frozenset(names)
        if not self._may_be_unused:
            require_used(self._shared, self.unused)


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


def _even_groups(shared: Mapping[str, Tensor], chunks: int) -> list[list[str]]:
    """Split the names into at most `chunks` consecutive groups with about the same number of elements."""
    share, filled = sum(tensor.numel() for tensor in shared.values()) / chunks, 0
    groups: list[list[str]] = [[]]
    for name, tensor in shared.items():
        if groups[-1] and filled >= share * len(groups):
            groups.append([])
        groups[-1].append(name)
        filled += tensor.numel()
    return groups
