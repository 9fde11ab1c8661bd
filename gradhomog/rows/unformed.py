"""Rows that do not lie in memory as tensors `[tasks, ...]`: the host works on them so, plugins see them formed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class UnformedRows:
    """Rows that answer for themselves what the host asks of rows; only `formed` puts them into one tensor per name.

    Attributes:
        tasks: N.
        names: of the parameters, in order.
        device: of the rows.
    """

    tasks: int
    names: tuple[str, ...]
    device: torch.device

    def formed(self) -> Mapping[str, Tensor]:
        """The rows as tensors `[tasks, *shape]` by name: what a homogenizer that reads rows is shown."""
        raise NotImplementedError

    def block_gramians(self) -> tuple[tuple[str, ...], Tensor]:
        """As `gradhomog.rows.block_gramians`."""
        raise NotImplementedError

    def block_squared_norms(self) -> tuple[tuple[str, ...], Tensor]:
        """As `gradhomog.rows.block_squared_norms`."""
        raise NotImplementedError

    def finite_tasks(self) -> list[bool]:
        """As `gradhomog.rows.finite_tasks`."""
        raise NotImplementedError

    def weighted_mean(self, weights: Tensor) -> dict[str, Tensor]:
        """As `gradhomog.rows.weighted_mean`."""
        raise NotImplementedError

    def select(self, tasks: Sequence[int]) -> UnformedRows:
        """The rows of some tasks."""
        raise NotImplementedError

    def detach(self) -> UnformedRows:
        """The same rows, outside the graph."""
        raise NotImplementedError
