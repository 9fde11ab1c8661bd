"""The rows of losses, computed on first use; if only a weighted mean is read, one backward pass suffices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from gradhomog.autograd.derivatives import Derivatives
from gradhomog.errors import OptionError
from gradhomog.rows import Direction, LazyRows, PerTaskRows
from gradhomog.rows.arithmetic import Product


@final
class LossRows(LazyRows):
    """The gradients of the losses, computed on demand.

    Args:
        derivatives: the derivatives of the losses.
        may_be_unused: do not raise if no loss depends on any of the shared parameters.
        chunks: for norms and inner products, compute the rows of this many groups of parameters one after the other,
            and keep none.

    Attributes:
        unused: names of parameters that no loss depends on; available after the rows or their mean were computed.
    """

    def __init__(self, derivatives: Derivatives, chunks: int = 1, may_be_unused: bool = False) -> None:
        self._derivatives, self._may_be_unused = derivatives, may_be_unused
        self.like, self.tasks = derivatives.graph.shared, len(derivatives.graph.losses)
        self.requires_grad = derivatives.graph.create_graph
        self.unused: frozenset[str] = frozenset()
        self._chunks = _even_groups(self.like, chunks) if chunks > 1 else []

    def compute(self) -> PerTaskRows:
        """Compute the rows by one backward pass per task."""
        rows = self._derivatives.rows()
        self._note_unused([name for name, gradients in rows.items() if all(part is None for part in gradients)])
        return PerTaskRows(rows, self.like, 1 / self._derivatives.graph.factor)

    def products(self, product: Product, by_block: bool) -> Tensor:
        if not self._chunks or self.computed or self.freed:
            return super().products(product, by_block)
        found: dict[str, Tensor] = {}
        for names in self._chunks:
            some, like = self._derivatives.some_rows(names), {name: self.like[name] for name in names}
            rows = PerTaskRows(some, like, 1 / self._derivatives.graph.factor)
            found.update(zip(names, rows.products(product, by_block=True).unbind(), strict=True))
        blocks = torch.stack([found[name] for name in self.like])
        return blocks if by_block else blocks.sum(0)

    def sum_in_one_pass(self, weights: Tensor, divisor: float) -> Direction | None:
        total = self._derivatives.weighted_sum(weights)
        if total is None:
            return None
        self.freed = not self._derivatives.graph.retain_graph
        self._note_unused([name for name, part in zip(self.like, total, strict=True) if part is None])
        parts = [
            torch.zeros_like(like, requires_grad=False) if part is None else part
            for like, part in zip(self.like.values(), total, strict=True)
        ]
        # Not in place: autograd may return one gradient for two parameters.
        scaled = torch._foreach_mul(parts, 1 / (divisor * self._derivatives.graph.factor))
        return dict(zip(self.like, scaled, strict=True))

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
