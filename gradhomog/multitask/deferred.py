"""Rows that are formed only if a homogenizer looks at them: else one pass gives the direction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gradhomog.errors import NonfiniteError, OptionError
from gradhomog.multitask.derivatives import Derivatives, Parts, ThroughFeatures
from gradhomog.separate_rows import SeparateRows
from gradhomog.unformed import UnformedRows


class DeferredRows(UnformedRows):
    """The rows that some derivatives would give.

    A pipeline that needs neither norms nor inner products nor the rows themselves (weights from losses, or from
    features) asks for nothing but the weighted mean at its end: then there is one backward pass instead of N.

    Args:
        derivatives: of the losses.
        formed_first: form the rows at once, as each has to be judged on its own (`nonfinite="drop"`).
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
        self._chunks = _even(self._shared, chunks) if chunks > 1 else []
        if formed_first:
            _ = self._rows

    @functools.cached_property
    def _rows(self) -> SeparateRows:
        parts = self.derivatives.rows()
        self._note_unused([name for name, gradients in parts.items() if all(part is None for part in gradients)])
        return self._without_factor(parts)

    def _without_factor(self, parts: Parts) -> SeparateRows:
        factor = self.derivatives.graph.factor
        if factor != 1:  # undone, so that what a homogenizer remembers does not depend on it
            parts = {name: [None if g is None else g / factor for g in gradients] for name, gradients in parts.items()}
        return SeparateRows(parts, {name: self._shared[name] for name in parts})

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
            rows = self._without_factor(self.derivatives.some_rows(names))
            found.update(zip(names, product(rows)[1].unbind(), strict=True))
        return self.names, torch.stack([found[name] for name in self.names])

    def finite_tasks(self) -> Tensor:
        if "_rows" in self.__dict__:
            return self._rows.finite_tasks()
        fine = torch.ones(self.tasks, dtype=torch.bool, device=self.device)
        if isinstance(self.derivatives, ThroughFeatures):
            for task, cotangents in enumerate(self.derivatives.cotangents):
                for cotangent in cotangents:
                    if cotangent is not None:
                        fine[task] &= torch.isfinite(_sum(cotangent))
        return fine

    def weighted_mean(self, weights: Tensor) -> dict[str, Tensor]:
        if "_rows" in self.__dict__ or (total := self.derivatives.weighted_sum(weights)) is None:
            return self._rows.weighted_mean(weights)
        self._note_unused([name for name, part in zip(self._shared, total, strict=True) if part is None])
        mean = {
            name: torch.zeros_like(like, requires_grad=False) if part is None else part
            for (name, like), part in zip(self._shared.items(), total, strict=True)
        }
        scale = 1 / (self.tasks * self.derivatives.graph.factor)
        # Not in place: autograd may give two parameters one gradient.
        mean = dict(zip(mean, torch._foreach_mul(list(mean.values()), scale), strict=True))
        self._check(mean)
        return mean

    def _note_unused(self, names: Sequence[str]) -> None:
        if len(names) == len(self._shared):
            raise OptionError(
                f"the losses must depend on the shared parameters; they depend on none of {', '.join(names[:4])}"
                f"{', …' if len(names) > 4 else ''}. The graph is cut somewhere (detach, a copy of the model), or the "
                "parameters are another model's."
            )
        self.unused = frozenset(names)

    def _check(self, mean: Mapping[str, Tensor]) -> None:
        sums = torch.stack([_sum(part) for part in mean.values()])
        if not bool(torch.isfinite(sums).all()):
            bad = [name for name, total in zip(mean, sums, strict=True) if not torch.isfinite(total)]
            raise NonfiniteError(
                f"the gradient of the shared parameters is not finite in {', '.join(bad[:4])}, though every loss is. "
                "Lower the learning rate, or give the scaler of a half-precision loop as `scaler`. Nothing was "
                'changed. nonfinite="drop" tells which task it is and leaves it out.'
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


def _sum(tensor: Tensor) -> Tensor:
    return tensor.detach().sum(dtype=torch.promote_types(tensor.dtype, torch.float32)).double()
