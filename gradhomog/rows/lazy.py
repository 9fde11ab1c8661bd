"""Rows that are computed when they are first required; a weighted sum alone may need one backward pass."""

from __future__ import annotations

import functools
from abc import abstractmethod

from torch import Tensor

from gradhomog.errors import NonfiniteError
from gradhomog.rows.arithmetic import Product
from gradhomog.rows.storage import Direction, Rows, StoredRows


class LazyRows(Rows):
    """Rows of losses, computed on demand.

    A pipeline that reads neither norms, inner products nor rows (weights from losses, or from features) reads only the
    weighted mean at its end, by one backward pass instead of N.

    Attributes:
        freed: True if the pass of a weighted sum has freed the graph, so that the rows cannot be computed.
    """

    freed: bool = False

    @abstractmethod
    def compute(self) -> StoredRows:
        """Compute the rows; called once."""

    @abstractmethod
    def sum_in_one_pass(self, weights: Tensor, divisor: float) -> Direction | None:
        """Return what `weighted_sum` returns, by one backward pass; None if the rows are required for it."""

    @property
    def computed(self) -> bool:
        """True if the rows are in memory."""
        return "_stored" in self.__dict__

    def stored(self) -> StoredRows:
        return self._stored

    def products(self, product: Product, by_block: bool) -> Tensor:
        return self._stored.products(product, by_block)

    def finite_tasks(self) -> list[bool]:
        return self._stored.finite_tasks()

    def weighted_sum(self, weights: Tensor, divisor: float = 1) -> Direction:
        found = None if self.computed else self.sum_in_one_pass(weights, divisor)
        return self._stored.weighted_sum(weights, divisor) if found is None else found

    @functools.cached_property
    def _stored(self) -> StoredRows:
        if self.freed:  # by the pass of a weighted mean, which is not finite
            raise NonfiniteError(
                "the gradient of the shared parameters is not finite, although every loss is. Lower the learning rate. "
                "Nothing was changed. All tasks share one backward pass; to identify the task, create the pipeline by "
                'gradhomog.pipeline(..., nonfinite="drop").'
            )
        return self.compute()
