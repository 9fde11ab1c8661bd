"""One homogenizer of a pipeline: call its stages, validate their results, attribute their errors."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gradhomog.errors import GradhomogError, PluginRunError, describe_error, raised_in_package
from gradhomog.global_state import READ_SETTINGS, restore_settings
from gradhomog.registry import PluginInfo
from gradhomog.registry.specs import STATISTICS, HomogenizerSpec
from gradhomog.step import validate
from gradhomog.step.homogenizer import Homogenizer, Part, Removable
from gradhomog.step.step import StageResult, Step
from gradhomog.step.task_key import TaskKey


@dataclass(eq=False)  # compared by identity: `==` of tensors in a homogenizer is not a bool
class Member:
    """A homogenizer with the plugin that provides it. Errors in its stages name plugin, distribution and version.

    Attributes:
        info, spec: `PluginInfo` and spec of the plugin; None for an object that was passed directly. Such an object may
            read every statistic and claims no trait.
        scale: `"paper"` multiplies the result of its stage by `paper_scale`.
        stage: `"mix"` or `"rows"`, the one that it overrides; None if it overrides neither.
        seconds: wall-clock time of its stages, without hooks in the encoder and without derivatives of `transform`.
    """

    homogenizer: Homogenizer
    selector: str
    options: Mapping[str, Any]
    info: PluginInfo | None = None
    spec: HomogenizerSpec | None = None
    scale: Literal["mean", "paper"] = "mean"
    seconds: float = field(default=0.0, init=False)
    needs: frozenset[str] = field(init=False)
    stage: Literal["mix", "rows"] | None = field(init=False)

    def __post_init__(self) -> None:
        needs = self.homogenizer.needs
        mixes, replaces = self.homogenizer.overrides("mix"), self.homogenizer.overrides("rows")
        if mixes and replaces:
            raise PluginRunError(f"{self} must override `mix` or `rows`, not both. {self.advice}")
        self.stage = "mix" if mixes else "rows" if replaces else None
        if self.spec is not None and needs is not None and not needs <= self.spec.needs:
            raise PluginRunError(
                f"{self} sets `needs` to {sorted(needs)}, but its plugin declares {sorted(self.spec.needs)}. "
                f"Add {sorted(needs - self.spec.needs)} to `needs` in its HomogenizerSpec."
            )
        declared = (STATISTICS if self.spec is None else self.spec.needs) if needs is None else needs
        self.needs = frozenset({*declared, "jacobian"} if replaces else declared)

    @property
    def declares_needs(self) -> bool:
        """True if it declares the statistics that it reads; otherwise it can read every available statistic."""
        return self.spec is not None or self.homogenizer.needs is not None

    @property
    def advice(self) -> str:
        return self.info.advice if self.info else "Correct it, or remove it from the pipeline."

    @property
    def before_rows(self) -> bool:
        """True if it acts in the network, before the rows are computed."""
        return self.homogenizer.overrides("attach") or self.homogenizer.overrides("transform")

    def __str__(self) -> str:
        return str(self.info) if self.info else f"homogenizer {type(self.homogenizer).__name__}"

    # -- stages in the network ---------------------------------------------------------------------------------------

    def attach(self, encoder: nn.Module) -> Callable[[], None]:
        """Attach to the encoder; return a function that detaches."""
        before, handles = _hooks(encoder), list[Removable]()

        def attach() -> None:
            found: Any = self.homogenizer.attach(encoder)
            for handle in found if isinstance(found, Iterable) else [found]:
                if not callable(getattr(handle, "remove", None)):
                    raise self.invalid("attach", "handles with a method `remove`", handle)
                handles.append(handle)

        def detach() -> None:
            try:
                with ExitStack() as stack:  # if one raises, the others are still removed
                    for handle in handles:
                        stack.callback(self._call, "`remove` of a handle from `attach`", handle.remove)
            finally:
                remaining = _remove_new_hooks(encoder, before)
            if remaining:
                raise PluginRunError(
                    f"{self} must return from `attach` a handle for every hook; {remaining} "
                    f"hook{'s' if remaining > 1 else ''} remained on the encoder after the handles were removed. "
                    f"{self.advice}"
                )

        try:
            self._call("`attach`", attach)
        except GradhomogError:
            for handle in reversed(handles):
                with suppress(Exception):  # the error of `attach` is the one to report
                    handle.remove()
            _remove_new_hooks(encoder, before)
            raise
        return detach

    def begin(self, key: TaskKey, part: Part, generator: torch.Generator) -> None:
        self._call("`begin`", self.homogenizer.begin, key, part, generator)

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        changed: Tensor = self._call("`transform`", self.homogenizer.transform, features, keys)
        if violated := validate.features(changed, features):
            raise self.invalid("transform", violated, changed)
        return changed

    def choose(self, keys: Sequence[TaskKey]) -> list[int]:
        """Return the validated result of `choose`, in ascending order."""
        found: Any = self._call("`choose`", self.homogenizer.choose, keys)
        if violated := validate.choice(found, len(keys)):
            raise self.invalid("choose", violated, found)
        return sorted(found)

    # -- stages on the rows ------------------------------------------------------------------------------------------

    def act(self, step: Step) -> StageResult:
        """Return the validated result of `mix`, in float64 on the CPU, or of `rows`; at `scale`."""
        stage = self.stage or ""
        found = self._call(f"`{stage}`", getattr(self.homogenizer, stage), step)
        value, aux, converged = found if type(found) is StageResult else StageResult(found)
        mixes = stage == "mix"
        if violated := validate.mixing(value, len(step.keys)) if mixes else validate.rows(value, step.jacobian):
            raise self.invalid(stage, violated, value)
        if mixes:
            value = value.to("cpu", torch.float64)
        if self.scale == "paper":
            factor = self._call("`paper_scale`", self.homogenizer.paper_scale, step.with_aux(aux))
            factor = torch.as_tensor(factor, dtype=torch.float64, device="cpu")
            value = factor * value if mixes else value.mix(factor.expand(step.tasks))
        return StageResult(value, aux, converged)

    def update(self, step: Step) -> Mapping[str, Any]:
        """Return the validated result of `update`, without assigning it."""
        values: Mapping[str, Any] = self._call("`update`", self.homogenizer.update, step)
        if violated := validate.state(values, self.homogenizer.state_names):
            raise self.invalid("update", violated, values)
        return values

    def measured(self, step: Step) -> dict[str, float | Sequence[float]]:
        found: Mapping[str, float | Sequence[float]] = self._call("`measured`", self.homogenizer.measured, step)
        if violated := validate.measured(found):
            raise self.invalid("measured", violated, found)
        return dict(found)

    def maps(self, encoder: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
        found: Mapping[str, Tensor] = self._call("`maps`", self.homogenizer.maps, encoder, inputs)
        if violated := validate.maps(found, inputs):
            raise self.invalid("maps", violated, found)
        return dict(found)

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._call("`state_dict`", self.homogenizer.state_dict)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._call("`load_state_dict`", self.homogenizer.load_state_dict, state)

    # -- errors ------------------------------------------------------------------------------------------------------

    def caused(self, error: BaseException) -> bool:
        """True if an error in the encoder was raised by code of this plugin."""
        return self.info is not None and raised_in_package(error, type(self.homogenizer).__module__)

    def failure(self, where: str, cause: BaseException) -> PluginRunError:
        return PluginRunError(f"{self} raised in {where}: {describe_error(cause)}. {self.advice}")

    def not_finite(self, stage: str, detail: str = "") -> PluginRunError:
        return PluginRunError(f"{self} returned NaN or infinity from `{stage}`{detail}. {self.advice}")

    def invalid(self, stage: str, expected: str, found: object) -> PluginRunError:
        return PluginRunError(
            f"{self} must return from `{stage}` {expected}; got {validate.describe(found)}. {self.advice}"
        )

    def _call(self, where: str, function: Callable[..., Any], *arguments: Any) -> Any:
        start, settings = time.perf_counter(), [*map(operator.call, READ_SETTINGS)]
        try:
            result = function(*arguments)
        except GradhomogError as error:
            if self.info is not None and self.info.name not in str(error):
                error.args = (f"{self}, in {where}: {error}",)  # same class and message, with the plugin's name
            raise
        except (Exception, SystemExit) as cause:
            raise self.failure(where, cause) from cause
        finally:
            self.seconds += time.perf_counter() - start
            changes = "" if [*map(operator.call, READ_SETTINGS)] == settings else restore_settings(settings)
        if changes:
            raise PluginRunError(
                f"{self} changed {changes} in {where}. All other methods would train with it; it was restored. "
                f"{self.advice}"
            )
        return result


_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# nn.Module has no public list of its hooks; the names of these four dicts are unchanged since PyTorch 2.0.


def _hooks(network: nn.Module) -> dict[tuple[int, int], dict[int, Any]]:
    """Return the table of each hook on a network and its submodules, by table and handle."""
    tables: list[dict[int, Any]] = [getattr(module, name) for module in network.modules() for name in _TABLES]
    return {(id(table), handle): table for table in tables for handle in table}


def _remove_new_hooks(network: nn.Module, known: Container[tuple[int, int]]) -> int:
    """Remove the hooks that are not among the known ones; return their number."""
    new = [(table, handle) for (place, handle), table in _hooks(network).items() if (place, handle) not in known]
    for table, handle in new:
        del table[handle]
    return len(new)
