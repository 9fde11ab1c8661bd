"""The statistics of one set of rows: losses, norms, Gramian, features; each computed once, on demand, for all."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradhomog import rows as row_math
from gradhomog.errors import DataError, OptionError
from gradhomog.rows import AnyRows, Rows
from gradhomog.rows.unformed import UnformedRows

if TYPE_CHECKING:
    from gradhomog.evidence import TaskKey


class Observation:
    """The statistics of one set of rows, shared by all who look at it.

    A homogenizer does not see this class but an `Evidence` of it, which holds it to the statistics it has declared.
    """

    def __init__(
        self,
        rows: AnyRows,
        losses: Tensor | None,
        keys: Sequence[TaskKey],
        features: Sequence[Tensor] = (),
        feature_cotangents: Sequence[Tensor] = (),
        targets: Tensor | None = None,
        *,
        gramian_wanted: bool = True,
    ) -> None:
        self.given = rows  # before any mixing, and as they are: never formed anew
        self.losses = None if losses is None else losses.to(torch.float64)
        self.keys = tuple(keys)
        self.features = tuple(features)
        self.feature_cotangents = tuple(feature_cotangents)
        self.targets = targets
        self.gramian_wanted = gramian_wanted
        if features:
            self._check("features", self.features)
        if feature_cotangents:
            self._check("feature_cotangents", self.feature_cotangents)
        if targets is not None:
            self._check("targets", (targets,))

    def _check(self, name: str, shown: Sequence[Tensor]) -> None:
        if any(len(tensor) != len(self.keys) for tensor in shown):
            raise DataError(
                f"`{name}` must have the {len(self.keys)} tasks of the rows in its first dimension; "
                f"got {[tuple(tensor.shape) for tensor in shown]}."
            )

    @functools.cached_property
    def _formed(self) -> Rows:
        return self.given.formed() if isinstance(self.given, UnformedRows) else self.given

    @property
    def rows(self) -> Rows:
        return self._formed

    @property
    def formed_rows(self) -> Rows | None:
        """The rows if they are in memory already, formed."""
        return self.__dict__.get("_formed") if isinstance(self.given, UnformedRows) else self.given

    @property
    def names(self) -> tuple[str, ...]:
        if isinstance(self.given, UnformedRows):
            return self.given.names
        return ("",) if isinstance(self.given, Tensor) else tuple(self.given)

    @property
    def device(self) -> torch.device:
        given = next(iter(self.given.values())) if isinstance(self.given, Mapping) else self.given
        return given.device

    @functools.cached_property
    def block_gramians(self) -> tuple[tuple[str, ...], Tensor]:
        return row_math.block_gramians(self.given)

    @functools.cached_property
    def block_squared_norms(self) -> tuple[tuple[str, ...], Tensor]:
        if self.gramian_wanted or "block_gramians" in self.__dict__:
            names, gramians = self.block_gramians
            return names, gramians.diagonal(dim1=1, dim2=2)
        return row_math.block_squared_norms(self.given)

    def gramian(self, parameters: str = "*") -> Tensor:
        return _over(*self.block_gramians, parameters)

    def norms(self, parameters: str = "*") -> Tensor:
        return row_math.safe_sqrt(_over(*self.block_squared_norms, parameters))

    def mixed(self, mixing: Tensor) -> Observation:
        """The observation of `mixing @ rows`, or of rows times weights: Gramian C·G·Cᵀ, rows formed only if read."""
        return _Mixed(self, mixing)

    def at_tap(self, before: int, after: int) -> Observation:
        """The same observation; features as one `transform` stage was given them, cotangents as it returned them."""
        return _AtTap(self, before, after)


class _AtTap(Observation):
    def __init__(self, source: Observation, before: int, after: int) -> None:
        features, cotangents = source.features[before : before + 1], source.feature_cotangents[after : after + 1]
        super().__init__(source.given, source.losses, source.keys, features, cotangents, source.targets)
        self._source = source

    @property
    def rows(self) -> Rows:
        return self._source.rows

    @property
    def formed_rows(self) -> Rows | None:
        return self._source.formed_rows

    @property
    def block_gramians(self) -> tuple[tuple[str, ...], Tensor]:
        return self._source.block_gramians  # the source's cache: what one reader computes, the next finds

    @property
    def block_squared_norms(self) -> tuple[tuple[str, ...], Tensor]:
        return self._source.block_squared_norms


class _Mixed(Observation):
    def __init__(self, source: Observation, mixing: Tensor) -> None:
        super().__init__(
            source.given, source.losses, source.keys, source.features, source.feature_cotangents, source.targets
        )
        self._source, self._mixing = source, mixing

    @functools.cached_property
    def _mixed_rows(self) -> Rows:
        return row_math.mix(self._source.rows, self._mixing)

    @property
    def rows(self) -> Rows:
        return self._mixed_rows

    @property
    def formed_rows(self) -> Rows | None:
        return self.__dict__.get("_mixed_rows")

    @functools.cached_property
    def block_gramians(self) -> tuple[tuple[str, ...], Tensor]:
        names, gramians = self._source.block_gramians
        if self._mixing.dim() == 1:
            return names, self._mixing[:, None] * gramians * self._mixing
        return names, self._mixing @ gramians @ self._mixing.T

    @functools.cached_property
    def block_squared_norms(self) -> tuple[tuple[str, ...], Tensor]:
        if self._mixing.dim() == 1:  # weights: norms are enough
            names, squares = self._source.block_squared_norms
            return names, squares * self._mixing.square()
        names, gramians = self.block_gramians
        return names, gramians.diagonal(dim1=1, dim2=2).clamp_min(0)


def _over(names: Sequence[str], blocks: Tensor, parameters: str) -> Tensor:
    """The sum of what blocks of rows hold, over those whose names match."""
    if parameters == "*":
        return blocks[0] if len(names) == 1 else blocks.sum(0)
    return blocks[_matching(names, parameters)].sum(0)


def _matching(names: Sequence[str], pattern: str) -> list[int]:
    found = [index for index, name in enumerate(names) if fnmatch.fnmatchcase(name, pattern)]
    if not found:
        some = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
        raise OptionError(
            f"`parameters` must match the name of at least one tensor of the rows; {pattern!r} matches none of: "
            f"{some or 'one unnamed tensor'}."
        )
    return found
