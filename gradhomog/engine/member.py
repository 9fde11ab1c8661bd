"""One homogenizer of a pipeline: its stages, called with what goes wrong told by plugin, distribution and version."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog import rows as row_math
from gradhomog.blame import passed_through_package, told
from gradhomog.engine import returned
from gradhomog.engine.watch import Shown, Watch
from gradhomog.errors import GradhomogError, PluginRunError
from gradhomog.evidence import Evidence, TaskKey, shown
from gradhomog.homogenizer import Homogenizer, Part, Removable
from gradhomog.registry import PluginInfo
from gradhomog.rows import Rows
from gradhomog.specs import STATISTICS, HomogenizerSpec


@dataclass(eq=False)  # identity: a homogenizer may hold tensors, which do not compare
class Member:
    """A homogenizer with where it came from; every stage is called through here, so that all results are checked.

    `info` and `spec` are None for an object that was handed in without a plugin around it: such a one may read every
    statistic, and claims nothing. `seconds` is the time spent in its stages by the clock; what runs within the encoder
    because `attach` put it there, and what derivatives of `transform` take, is not in it. `largest` is the greatest
    number of what it last returned from `mix`.
    """

    homogenizer: Homogenizer
    selector: str
    options: Mapping[str, Any]
    info: PluginInfo | None = None
    spec: HomogenizerSpec | None = None
    seconds: float = field(default=0.0, init=False)
    largest: float = field(default=0.0, init=False)
    needs: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        wanted = self.homogenizer.needs
        self.needs = frozenset((STATISTICS if self.spec is None else self.spec.needs) if wanted is None else wanted)
        if self.spec is not None and wanted is not None and not wanted <= self.spec.needs:
            raise PluginRunError(
                f"{self} sets `needs` to {sorted(wanted)}, but its plugin declares {sorted(self.spec.needs)}. "
                f"Add {sorted(wanted - self.spec.needs)} to `needs` in its HomogenizerSpec."
            )

    @property
    def declares_needs(self) -> bool:
        """Whether it says what it needs; one that does not may read all that there is, and must do without."""
        return self.spec is not None or self.homogenizer.needs is not None

    @property
    def must_be_last(self) -> bool:
        return self.spec is not None and self.spec.last

    def __str__(self) -> str:
        return str(self.info) if self.info else f"homogenizer {type(self.homogenizer).__name__}"

    @property
    def advice(self) -> str:
        return self.info.advice if self.info else "Correct it, or leave it out."

    @property
    def before_rows(self) -> bool:
        """Whether it changes what the rows are, not only what is made of them."""
        return self.homogenizer.overrides("attach") or self.homogenizer.overrides("transform")

    # -- stages ------------------------------------------------------------------------------------------------------

    def attach(self, encoder: nn.Module) -> list[Removable]:
        """The handles that undo what was attached: all of them, whether one or several were returned."""
        handles: list[Any] = []

        def attach() -> None:
            given: Any = self.homogenizer.attach(encoder)
            handles.extend(handle for handle in (given if isinstance(given, Iterable) else [given]))

        try:
            self._call("`attach`", attach)
            for handle in handles:
                self._expect("attach", "" if hasattr(handle, "remove") else "handles with a method `remove`", handle)
        except GradhomogError:
            for handle in handles:
                if hasattr(handle, "remove"):
                    self.detach(handle)
            raise
        return handles

    def detach(self, handle: Removable) -> None:
        self._call("`remove` of what `attach` returned", handle.remove)

    def begin(self, key: TaskKey, part: Part) -> None:
        self._run("begin", key, part)

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        changed: Tensor = self._watched("transform", lambda: [("features", features)], features, keys)
        self._expect("transform", returned.features(changed, features), changed)
        return changed

    def mix(self, evidence: Evidence) -> Tensor:
        """Weights `[tasks]` or the mixing matrix `[tasks, tasks]`, float64."""
        result: Tensor = self._watched("mix", lambda: shown(evidence), evidence)
        self._expect("mix", returned.mixing(result, evidence.tasks), result)
        result = result.to(evidence.device, torch.float64)
        self.largest = torch.linalg.vector_norm(result, math.inf).item()
        if not math.isfinite(self.largest):
            raise self.not_finite("mix", f": {result.detach().tolist()}")
        return result

    def rows(self, given: Rows) -> Rows:
        tensors = [given] if isinstance(given, Tensor) else list(given.values())
        changed: Rows = self._watched("rows", lambda: [("rows", tensor) for tensor in tensors], given)
        self._expect("rows", returned.rows(changed, given), changed)
        if not row_math.all_finite(changed):
            raise self.not_finite("rows")
        return changed

    def update(self, evidence: Evidence) -> None:
        self._watched("update", lambda: shown(evidence), evidence)

    def measured(self) -> dict[str, float | Sequence[float]]:
        found: Mapping[str, float | Sequence[float]] = self._run("measured")
        self._expect("measured", returned.measured(found), found)
        return dict(found)

    def maps(self, encoder: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
        found: Mapping[str, Tensor] = self._watched("maps", lambda: [("inputs", inputs)], encoder, inputs)
        self._expect("maps", returned.maps(found, inputs), found)
        return dict(found)

    def too_large(self, rows: Rows) -> PluginRunError:
        """For weights under which rows leave the range of their dtype."""
        dtypes = {str(value.dtype) for value in ([rows] if isinstance(rows, Tensor) else rows.values())}
        return PluginRunError(
            f"{self} returned from `mix` weights of up to {self.largest:.1e}, too large for rows of "
            f"{' and '.join(sorted(dtypes))}: the direction is not finite. Nothing was learnt from this step. "
            f"{self.advice}"
        )

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._run("state_dict")
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._run("load_state_dict", state)

    # -- what goes wrong ---------------------------------------------------------------------------------------------

    def caused(self, error: BaseException) -> bool:
        """Whether an error from within the encoder was raised in what this plugin attached to it."""
        return self.info is not None and passed_through_package(error, type(self.homogenizer).__module__)

    def failure(self, where: str, cause: BaseException) -> PluginRunError:
        return PluginRunError(f"{self} raised in {where}: {told(cause)}. {self.advice}")

    def not_finite(self, stage: str, what: str = "") -> PluginRunError:
        return PluginRunError(f"{self} returned NaN or infinity from `{stage}`{what}. {self.advice}")

    def _expect(self, stage: str, expected: str, found: object) -> None:
        """Raise unless nothing is left to be expected."""
        if expected:
            what = returned.description(found)
            raise PluginRunError(f"{self} must return from `{stage}` {expected}; got {what}. {self.advice}")

    def _watched(self, stage: str, seen: Shown, *arguments: Any) -> Any:
        watch = Watch(seen)
        result = self._run(stage, *arguments)
        if name := watch.changed():
            raise PluginRunError(
                f"{self} changed `{name}` in place in `{stage}`, but others read the same memory. "
                f"It has to work on a copy, {name}.clone(). {self.advice}"
            )
        return result

    def _run(self, stage: str, *arguments: Any) -> Any:
        return self._call(f"`{stage}`", getattr(self.homogenizer, stage), *arguments)

    def _call(self, where: str, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments)
        except GradhomogError as error:
            if self.info is not None and self.info.name not in str(error):
                error.args = (f"{self}, in {where}: {error}",)  # its own words and class, with its author
            raise
        except (Exception, SystemExit) as cause:
            raise self.failure(where, cause) from cause
        finally:
            self.seconds += time.perf_counter() - start
