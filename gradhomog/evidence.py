"""What one step shows of its tasks: losses, row norms, Gramian, rows, features; each computed once, on demand."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog import rows as row_math
from gradhomog.errors import DataError, OptionError, PluginRunError
from gradhomog.rows import Rows
from gradhomog.specs import STATISTICS


@dataclass(frozen=True)
class TaskKey:
    """What a homogenizer can know a task by from step to step: its place in the batch and its domain."""

    slot: int
    domain: str = ""

    def by(self, key: str) -> str:
        """The key that state is held under: `by("slot")` is the slot's number, `by("domain")` the domain's name."""
        if key == "slot":
            return str(self.slot)
        if not self.domain:
            raise OptionError(
                "what is held by domain needs to know the domain of every task; "
                f"slot {self.slot} has none. Pass domains=[...] with the tasks, or hold it by slot."
            )
        return self.domain


class Observation:
    """The statistics of one set of rows, shared by all who look at it.

    A homogenizer does not see this class but an `Evidence` of it, which holds it to the statistics it has declared.
    """

    def __init__(
        self,
        rows: Rows,
        losses: Tensor | None,
        keys: Sequence[TaskKey],
        features: Sequence[Tensor] = (),
        feature_cotangents: Sequence[Tensor] = (),
        targets: Tensor | None = None,
        *,
        gramian_wanted: bool = True,
    ) -> None:
        self._rows = rows
        self.losses = None if losses is None else losses.to(torch.float64)
        self.keys = tuple(keys)
        self.features = tuple(features)
        self.feature_cotangents = tuple(feature_cotangents)
        self.targets = targets
        for name, shown in (
            ("features", self.features), ("feature_cotangents", self.feature_cotangents),
            ("targets", () if targets is None else (targets,)),
        ):  # fmt: skip
            if any(len(tensor) != len(self.keys) for tensor in shown):
                raise DataError(
                    f"`{name}` must have the {len(self.keys)} tasks of the rows in its first dimension; "
                    f"got {[tuple(tensor.shape) for tensor in shown]}."
                )
        self.gramian_wanted = gramian_wanted

    @property
    def rows(self) -> Rows:
        return self._rows

    @property
    def rows_as_given(self) -> Rows:
        """Before any mixing: never formed anew."""
        return self._rows

    @property
    def names(self) -> tuple[str, ...]:
        return ("",) if isinstance(self._rows, Tensor) else tuple(self._rows)

    @functools.cached_property
    def block_gramians(self) -> tuple[tuple[str, ...], Tensor]:
        return row_math.block_gramians(self._rows)

    @functools.cached_property
    def block_squared_norms(self) -> tuple[tuple[str, ...], Tensor]:
        if self.gramian_wanted or "block_gramians" in self.__dict__:
            names, gramians = self.block_gramians
            return names, gramians.diagonal(dim1=1, dim2=2).clamp_min(0)
        return row_math.block_squared_norms(self._rows)

    def gramian(self, parameters: str = "*") -> Tensor:
        names, gramians = self.block_gramians
        return gramians[_matching(names, parameters)].sum(0)

    def norms(self, parameters: str = "*") -> Tensor:
        names, squares = self.block_squared_norms
        return row_math.safe_sqrt(squares[_matching(names, parameters)].sum(0))

    def mixed(self, mixing: Tensor) -> Observation:
        """The observation of `mixing @ rows`: Gramian C·G·Cᵀ, rows formed only if somebody reads them."""
        return _Mixed(self, mixing)

    def at_tap(self, before: int, after: int) -> Observation:
        """The same observation; features as one `transform` stage was given them, cotangents as it returned them."""
        return _AtTap(self, before, after)


class _AtTap(Observation):
    def __init__(self, source: Observation, before: int, after: int) -> None:
        features, cotangents = source.features[before : before + 1], source.feature_cotangents[after : after + 1]
        super().__init__(source._rows, source.losses, source.keys, features, cotangents, source.targets)
        self._source = source

    @property
    def rows(self) -> Rows:
        return self._source.rows

    @property
    def block_gramians(self) -> tuple[tuple[str, ...], Tensor]:
        return self._source.block_gramians  # the source's cache: what one reader computes, the next finds

    @property
    def block_squared_norms(self) -> tuple[tuple[str, ...], Tensor]:
        return self._source.block_squared_norms


class _Mixed(Observation):
    def __init__(self, source: Observation, mixing: Tensor) -> None:
        super().__init__(
            source._rows, source.losses, source.keys, source.features, source.feature_cotangents, source.targets
        )
        self._source, self._mixing = source, mixing

    @functools.cached_property
    def _mixed_rows(self) -> Rows:
        return row_math.mix(self._source.rows, self._mixing)

    @property
    def rows(self) -> Rows:
        return self._mixed_rows

    @functools.cached_property
    def block_gramians(self) -> tuple[tuple[str, ...], Tensor]:
        names, gramians = self._source.block_gramians
        return names, self._mixing @ gramians @ self._mixing.T

    @functools.cached_property
    def block_squared_norms(self) -> tuple[tuple[str, ...], Tensor]:
        if torch.count_nonzero(self._mixing - self._mixing.diagonal().diag()) == 0:  # weights: norms are enough
            names, squares = self._source.block_squared_norms
            return names, squares * self._mixing.diagonal().square()
        names, gramians = self.block_gramians
        return names, gramians.diagonal(dim1=1, dim2=2).clamp_min(0)


def _matching(names: Sequence[str], pattern: str) -> list[int]:
    if pattern == "*":
        return list(range(len(names)))
    found = [index for index, name in enumerate(names) if fnmatch.fnmatchcase(name, pattern)]
    if not found:
        some = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
        raise OptionError(
            f"`parameters` must match the name of at least one tensor of the rows; {pattern!r} matches none of: "
            f"{some or 'one unnamed tensor'}."
        )
    return found


def _visible(tensor: Tensor) -> Tensor:
    """As the stage may see it: `update` runs without gradients and must not hold on to a graph."""
    return tensor if torch.is_grad_enabled() else tensor.detach()


class Evidence:
    """What a homogenizer sees of a step, in `mix` (with a graph only if `create_graph`) and in `update` (detached).

    Only the statistics that the homogenizer declared in `HomogenizerSpec.needs` can be read.

    Attributes:
        tasks: N, the number of tasks.
        keys: one `TaskKey` per task; after `nonfinite="drop"`, of the tasks that are left.
    """

    def __init__(self, observation: Observation, needs: Iterable[str] = STATISTICS, reader: str = "") -> None:
        self._observation = observation
        self._needs = frozenset(needs)
        self._reader = reader
        self.keys = observation.keys
        self.tasks = len(observation.keys)

    def _declared(self, statistic: str) -> Observation:
        if statistic not in self._needs:
            raise PluginRunError(
                f"{self._reader or 'this homogenizer'} reads `{statistic}` but declares needs={sorted(self._needs)}. "
                f"Add '{statistic}' to `needs` in its HomogenizerSpec."
            )
        return self._observation

    @property
    def device(self) -> torch.device:
        """Where the rows are, and with them norms and Gramian."""
        rows = self._observation.rows_as_given
        return (rows if isinstance(rows, Tensor) else next(iter(rows.values()))).device

    @property
    def losses(self) -> Tensor:
        """Query losses, float64 `[tasks]`. Raises `OptionError` if the caller gave none."""
        losses = self._declared("losses").losses
        if losses is None:
            raise OptionError(
                f"{self._reader or 'this homogenizer'} needs the tasks' losses; none were given. "
                "Pass losses=..., a tensor [tasks], to combine()."
            )
        return _visible(losses)

    def matches(self, parameters: str) -> bool:
        """Whether a glob pattern matches the name of any tensor of the rows."""
        return any(fnmatch.fnmatchcase(name, parameters) for name in self._observation.names)

    def gramian(self, parameters: str = "*") -> Tensor:
        """Inner products of the rows, float64 `[tasks, tasks]`; with a glob pattern, over the parameters it matches."""
        return _visible(self._declared("gramian").gramian(parameters))

    def norms(self, parameters: str = "*") -> Tensor:
        """Euclidean norms of the rows, float64 `[tasks]`; with a glob pattern, over the parameters it matches."""
        return _visible(self._declared("norms").norms(parameters))

    @property
    def rows(self) -> Rows:
        """The rows themselves; not to be written to."""
        rows = self._declared("rows").rows
        return rows if torch.is_grad_enabled() else row_math.detach(rows)

    @property
    def features(self) -> Tensor:
        """What this homogenizer's `transform` was given (or the encoder's output), `[tasks, queries, features]`."""
        return self._feature(self._declared("features").features, "features")

    @property
    def feature_cotangents(self) -> Tensor:
        """Derivative of each task's loss by what `transform` returned (or by the encoder's output), same shape."""
        return self._feature(self._declared("features").feature_cotangents, "feature_cotangents")

    @property
    def targets(self) -> Tensor:
        """The queries' classes, int64 `[tasks, queries]` (float `[tasks, queries, outputs]` in regression)."""
        targets = self._declared("features").targets
        return self._feature(() if targets is None else (targets,), "targets")

    def _feature(self, found: Sequence[Tensor], name: str) -> Tensor:
        if not found:
            raise OptionError(
                f"{self._reader or 'this homogenizer'} needs the tasks' {name}; none were given. Pass {name}=..., "
                f"a tensor [tasks, queries{'' if name == 'targets' else ', features'}], to combine()."
            )
        return _visible(found[0])

    def by(self, key: str) -> list[str]:
        """One key per task under which state is held: `by("slot")` or `by("domain")`."""
        return [task.by(key) for task in self.keys]
