"""Rows that are formed only if a homogenizer looks at them: else one pass gives the direction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gradhomog.errors import NonfiniteError, OptionError
from gradhomog.multitask.derivatives import Derivatives
from gradhomog.rows.separate import SeparateRows
from gradhomog.rows.unformed import UnformedRows


class DeferredRows(UnformedRows):
    """The rows that some derivatives would give.

    A pipeline that needs neither norms nor inner products nor the rows themselves (weights from losses, or from
    features) asks for nothing but the weighted mean at its end: then there is one backward pass instead of N.

    Args:
        derivatives: of the losses.
        formed_first: form the rows at once: each is judged on its own, or read.
        chunks: for norms and inner products, form the rows of so many groups of parameters one after the other, and
            keep none.

    Attributes:
        unused: names of parameters that no loss depends on, once rows or their mean were formed.
    """

    def __init__(self, derivatives: Derivatives, formed_first: bool = False, chunks: int = 1) -> None:
        self.derivatives = derivatives
        self._shared: Mapping[str, Tensor] = derivatives.graph.shared
        self.names = tuple(self._shared)
        self.tasks = len(derivatives.graph.losses)
        self.device = next(iter(self._shared.values())).device
        self.unused: frozenset[str] = frozenset()
        self._spent = False
        self._chunks = _even(self._shared, chunks) if chunks > 1 else []
        if formed_first:
            _ = self._rows

    @functools.cached_property
    def _rows(self) -> SeparateRows:
        parts = self.derivatives.rows()
        self._note_unused([name for name, gradients in parts.items() if all(part is None for part in gradients)])
        return SeparateRows(parts, self._shared, 1 / self.derivatives.graph.factor)

    def formed(self) -> Mapping[str, Tensor]:
        return self._rows.formed()

    def separate(self) -> SeparateRows:
        """The rows, parameter by parameter."""
        return self._rows

    def select(self, tasks: Sequence[int]) -> SeparateRows:
        return self._rows.select(tasks)

    def detach(self) -> DeferredRows:
        return self  # whether derivatives have a graph was decided when they were asked for

    def block_gramians(self) -> tuple[tuple[str, ...], Tensor]:
        return self._rows.block_gramians() if self._whole else self._by_chunks(SeparateRows.block_gramians)

    def block_squared_norms(self) -> tuple[tuple[str, ...], Tensor]:
        return self._rows.block_squared_norms() if self._whole else self._by_chunks(SeparateRows.block_squared_norms)

    @property
    def _whole(self) -> bool:
        return not self._chunks or "_rows" in self.__dict__

    def _by_chunks(
        self, product: Callable[[SeparateRows], tuple[tuple[str, ...], Tensor]]
    ) -> tuple[tuple[str, ...], Tensor]:
        found: dict[str, Tensor] = {}
        for names in self._chunks:
            parts, like = self.derivatives.some_rows(names), {name: self._shared[name] for name in names}
            rows = SeparateRows(parts, like, 1 / self.derivatives.graph.factor)
            found.update(zip(names, product(rows)[1].unbind(), strict=True))
        return self.names, torch.stack([found[name] for name in self.names])

    def finite_tasks(self) -> list[bool]:
        if self._spent:
            raise NonfiniteError(
                "the gradient of the shared parameters is not finite, though every loss is. Lower the learning rate. "
                'Nothing was changed. One pass took all tasks together: nonfinite="drop" tells which of them it is.'
            )
        return self._rows.finite_tasks()

    def weighted_mean(self, weights: Tensor) -> dict[str, Tensor]:
        if "_rows" in self.__dict__ or (total := self.derivatives.weighted_sum(weights)) is None:
            return self._rows.weighted_mean(weights)
        self._spent = not self.derivatives.graph.retain_graph
        self._note_unused([name for name, part in zip(self._shared, total, strict=True) if part is None])
        mean = {
            name: torch.zeros_like(like, requires_grad=False) if part is None else part
            for (name, like), part in zip(self._shared.items(), total, strict=True)
        }
        scale = 1 / (self.tasks * self.derivatives.graph.factor)
        # Not in place: autograd may give two parameters one gradient.
        return dict(zip(mean, torch._foreach_mul(list(mean.values()), scale), strict=True))

    def _note_unused(self, names: Sequence[str]) -> None:
        self.unused = frozenset(names)
        require_some(self._shared, self.unused)


def require_some(shared: Mapping[str, Tensor], unused: frozenset[str]) -> None:
    """Raise if no loss depends on any of the shared parameters.

    Raises:
        OptionError.
    """
    if len(unused) == len(shared):
        some = list(shared)
        raise OptionError(
            f"the losses must depend on the shared parameters; they depend on none of {', '.join(some[:4])}"
            f"{', …' if len(some) > 4 else ''}. The graph is cut somewhere (detach, a copy of the model), or the "
            "parameters are another model's."
        )


def _even(shared: Mapping[str, Tensor], chunks: int) -> list[list[str]]:
    """The names in at most so many groups of neighbours, each of about as many numbers."""
    share, filled = sum(tensor.numel() for tensor in shared.values()) / chunks, 0
    groups: list[list[str]] = [[]]
    for name, tensor in shared.items():
        if groups[-1] and filled >= share * len(groups):
            groups.append([])
        groups[-1].append(name)
        filled += tensor.numel()
    return groups
