"""What one step shows to a homogenizer: the statistics of its tasks that it has declared, and no others."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog import rows as row_math
from gradhomog.engine.observation import Observation
from gradhomog.errors import OptionError, PluginRunError
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


@functools.lru_cache(maxsize=256)
def task_keys(tasks: int, domains: tuple[str, ...]) -> tuple[TaskKey, ...]:
    """The keys of a batch's tasks; without domains, of their slots alone."""
    return tuple(TaskKey(slot, domains[slot] if domains else "") for slot in range(tasks))


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

    def __init__(self, observation: Observation, needs: Iterable[str] = STATISTICS, reader: object = "") -> None:
        self._observation = observation
        self._needs = needs if isinstance(needs, frozenset) else frozenset(needs)
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
        return self._observation.device

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
        return _visible(self._declared("gramian").gramian(parameters)).clone()  # whose reader may write to it

    def norms(self, parameters: str = "*") -> Tensor:
        """Euclidean norms of the rows, float64 `[tasks]`; with a glob pattern, over the parameters it matches."""
        return _visible(self._declared("norms").norms(parameters))

    @property
    def rows(self) -> Rows:
        """The rows themselves; not to be written to."""
        rows = self._declared("rows").rows
        return rows if torch.is_grad_enabled() else row_math.transform(rows, Tensor.detach)

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


def shown(evidence: Evidence) -> list[tuple[str, Tensor]]:
    """What a homogenizer reads without a copy, as far as it is formed, by name: all of it is shared with others."""
    observation, needs = evidence._observation, evidence._needs
    found: list[tuple[str, Tensor]] = []
    if "losses" in needs and observation.losses is not None:
        found.append(("losses", observation.losses))
    if "rows" in needs and (rows := observation.formed_rows) is not None:
        found += [("rows", value) for value in ([rows] if isinstance(rows, Tensor) else rows.values())]
    if "features" in needs:
        found += [("features", value) for value in observation.features]
        found += [("feature_cotangents", value) for value in observation.feature_cotangents]
        found += [("targets", observation.targets)] if observation.targets is not None else []
    return found
