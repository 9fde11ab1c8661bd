"""One homogenizer of a pipeline: call its stages, validate their results, attribute their errors."""

import math
import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor, nn

from gradhomog.errors import GradhomogError, PluginRunError, describe_error, raised_in_package
from gradhomog.global_state import READ_SETTINGS, restore_settings
from gradhomog.registry import PluginInfo
from gradhomog.registry.specs import STATISTICS, HomogenizerSpec
from gradhomog.rows import DenseRows, Jacobian
from gradhomog.step.homogenizer import Homogenizer, Removable
from gradhomog.step.step import StageResult, Step, TaskKey


@dataclass(eq=False)  # compared by identity: `==` of tensors in a homogenizer is not a bool
class Member:
    """A homogenizer with the plugin that provides it. Errors in its stages name plugin, distribution and version.

    Attributes:
        info, spec: `PluginInfo` and spec of the plugin; None for an object that was passed directly. Such an object may
            read every statistic and claims no trait.
        stage: `"mix"` or `"rows"`, the one that it overrides; None if it overrides neither.
    """

    homogenizer: Homogenizer
    selector: str
    options: Mapping[str, Any]
    info: PluginInfo | None = None
    spec: HomogenizerSpec | None = None
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

    def claims(self, trait: str) -> bool:
        return self.spec is not None and trait in self.spec.traits

    def requires(self, statistic: str) -> bool:
        """True if it reads a statistic, not only if it is available."""
        return statistic in self.needs and (self.declares_needs or (statistic, self.stage) == ("jacobian", "rows"))

    @property
    def weighs(self) -> bool:
        """True if it weighs tasks by losses and state alone, so that their weights are relative to absent tasks too."""
        return self.stage == "mix" and (self.needs <= {"losses"} or self.homogenizer.weights_absent)

    @property
    def max_tasks(self) -> float:
        return self.spec.max_tasks if self.spec is not None and self.spec.max_tasks else math.inf

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
                        stack.callback(self._guard, "`remove` of a handle from `attach`", handle.remove)
            finally:
                remaining = _remove_new_hooks(encoder, before)
            if remaining:
                raise PluginRunError(
                    f"{self} must return from `attach` a handle for every hook; {remaining} "
                    f"hook{'s' if remaining > 1 else ''} remained on the encoder after the handles were removed. "
                    f"{self.advice}"
                )

        try:
            self._guard("`attach`", attach)
        except GradhomogError:
            with suppress(GradhomogError):  # the error of `attach` is the one to report
                detach()
            raise
        return detach

    # -- other methods -----------------------------------------------------------------------------------------------

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of the homogenizer, such as `transform` or `update`, and validate its result."""
        found = self._guard(f"`{name}`", getattr(self.homogenizer, name), *arguments)
        if name in _CHECKS and (violated := _CHECKS[name](found, *arguments)):
            raise self.invalid(name, violated, found)
        return found

    def act(self, step: Step) -> StageResult:
        """Return the validated result of `mix`, in float64 on the CPU, or of `rows`; in the scale of the option."""
        stage = self.stage or ""
        found = self._guard(f"`{stage}`", getattr(self.homogenizer, stage), step)
        value, aux, converged = found if type(found) is StageResult else StageResult(found)
        mixes = stage == "mix"
        tasks, violated = len(step.keys), ""
        if not mixes:
            violated = _check_rows(value, step.jacobian)
        elif not _dense(value) or value.is_complex() or value.shape not in ((tasks,), (tasks, tasks)):
            violated = f"weights of shape [{tasks}] or a matrix [{tasks}, {tasks}]"
        elif value.requires_grad and not torch.is_grad_enabled():
            violated = "a tensor outside the graph, since create_graph=False"
        if violated:
            raise self.invalid(stage, violated, value)
        if mixes and not (value.is_cpu and value.dtype == torch.float64):
            value = value.to("cpu", torch.float64)
        if self.options.get("scale") == "paper" and self.homogenizer.overrides("paper_scale"):
            factor = torch.as_tensor(self.call("paper_scale", step.with_aux(aux)), dtype=torch.float64, device="cpu")
            value = factor * value if mixes else value.mix(factor.expand(step.tasks))
        return StageResult(value, aux, converged)

    def update(self, step: Step) -> Mapping[str, Any]:
        """Return the validated result of `update`, without assigning it."""
        values: Mapping[str, Any] = self.call("update", step)
        names = self.homogenizer.state_names
        if unknown := [name for name in values if name not in names]:
            expected = f"only keys in `state_names` ({', '.join(names) or 'empty'}), which {unknown[0]!r} is not"
            raise self.invalid("update", expected, values)
        if not numbers_finite(values):
            raise self.not_finite("update")
        return values

    # -- errors ------------------------------------------------------------------------------------------------------

    def caused(self, error: BaseException) -> bool:
        """True if an error in the encoder was raised by code of this plugin."""
        return self.info is not None and raised_in_package(error, type(self.homogenizer).__module__)

    def failure(self, where: str, cause: BaseException) -> PluginRunError:
        return PluginRunError(f"{self} raised in {where}: {describe_error(cause)}. {self.advice}")

    def not_finite(self, stage: str, detail: str = "") -> PluginRunError:
        return PluginRunError(f"{self} returned NaN or infinity from `{stage}`{detail}. {self.advice}")

    def invalid(self, stage: str, expected: str, found: object) -> PluginRunError:
        return PluginRunError(f"{self} must return from `{stage}` {expected}; got {_describe(found)}. {self.advice}")

    def _guard(self, where: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call code of the plugin; name the plugin in its errors, and restore settings that it changes."""
        settings = [*map(operator.call, READ_SETTINGS)]
        try:
            result = function(*arguments)
        except GradhomogError as error:
            if self.info is not None and self.info.name not in str(error):
                error.args = (f"{self}, in {where}: {error}",)  # same class and message, with the plugin's name
            raise
        except (Exception, SystemExit) as cause:
            raise self.failure(where, cause) from cause
        finally:
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


# -- validation: each function returns the violated requirement of a stage's result, or "" ------------------------


def _check_features(found: object, given: Tensor, keys: object) -> str:
    """Validate the result of `transform`, except for NaN, which `nonfinite` finds later with fewer reads."""
    if not _dense(found) or not _alike(found, given):
        return f"features of shape {tuple(given.shape)}, {given.dtype} on {given.device}"
    if given.requires_grad and torch.is_grad_enabled() and not found.requires_grad:
        return "features with a graph to its input, or the encoder receives no gradient"
    return ""


def _check_choice(found: object, keys: Sequence[TaskKey]) -> str:
    """Validate the result of `choose`."""
    if isinstance(found, Sequence) and 0 < len(found) == len(set(found)) and set(found) <= set(range(len(keys))):
        return ""
    return f"at least one of the positions 0 to {len(keys) - 1}, each once"


def _check_rows(found: object, given: Jacobian) -> str:
    """Validate the result of `rows`."""
    if not isinstance(found, Jacobian):
        return "a Jacobian, created by `map`, `replace` or `repeat` of step.jacobian"
    if found.names != given.names or found.tasks != given.tasks:
        return f"a Jacobian of {given.tasks} tasks with the blocks {', '.join(map(repr, given.names))}"
    pairs = zip(found.row_like().values(), given.row_like().values(), strict=True)
    blocks, tasks = found.rows.blocks.values() if isinstance(found.rows, DenseRows) else [], found.rows.tasks
    if not all(_dense(row) and _alike(row, like) for row, like in pairs) or any(len(b) != tasks for b in blocks):
        return "a Jacobian with the shapes, dtypes and device of step.jacobian"
    return ""


def _check_state(found: object, step: object) -> str:
    """Validate the result of `update`."""
    return "" if isinstance(found, Mapping) else "a dict with new values of `state_names`, without changing `self`"


def numbers_finite(found: object) -> bool:
    """True if all numbers in nested dicts and lists are finite; tensors are not read."""
    if isinstance(found, Mapping):
        return all(map(numbers_finite, found.values()))
    if isinstance(found, (list, tuple)):
        return all(map(numbers_finite, found))
    return not isinstance(found, float) or math.isfinite(found)


def _check_measured(found: object, step: object) -> str:
    """Validate the result of `measured`: it must be serializable in a record."""
    if isinstance(found, Mapping) and all(isinstance(name, str) and _numbers(value) for name, value in found.items()):
        return ""
    return "numbers, or lists of numbers, by name"


def _check_maps(found: object, encoder: object, inputs: Tensor) -> str:
    """Validate the result of `maps`."""
    if isinstance(found, Mapping) and all(
        _dense(value) and value.dim() > 0 and len(value) == len(inputs) for value in found.values()
    ):
        return ""
    return f"one map for each of {len(inputs)} inputs, as tensors by name"


_CHECKS: Mapping[str, Callable[..., str]] = {
    "transform": _check_features,
    "choose": _check_choice,
    "update": _check_state,
    "measured": _check_measured,
    "maps": _check_maps,
}
"""The validation of a method's result, called with the result and the arguments."""


def _describe(found: object) -> str:
    """Describe a value for an error message."""
    if isinstance(found, Tensor):
        graph = " with a graph" if found.requires_grad else ""
        return f"a tensor {tuple(found.shape)} {found.dtype} on {found.device}{graph}"
    if isinstance(found, Jacobian):
        return f"a Jacobian of {found.tasks} tasks, {found.dtype}, with blocks {', '.join(map(repr, found.names))}"
    if isinstance(found, Mapping):
        return f"a dict of {{{', '.join(f'{name!r}: {_describe(value)}' for name, value in found.items())}}}"
    return type(found).__name__


def _dense(found: object) -> TypeGuard[Tensor]:
    """True for a tensor with values in memory: neither sparse nor on the device `meta`."""
    return isinstance(found, Tensor) and found.layout == torch.strided and not found.is_meta


def _alike(found: Tensor, given: Tensor) -> bool:
    return (found.shape, found.dtype, found.device) == (given.shape, given.dtype, given.device)


def _numbers(value: object) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(isinstance(item, Real) for item in value)
    return isinstance(value, Real)


def call_and_compare(member: Member, stage: str, step: Step) -> Any:
    """Call `update`, or `act` for another stage, and compare the inputs with copies made before; see `debug`.

    Detects writes through any view of the memory, `.data` and NumPy included.

    Raises:
        PluginRunError: a tensor has changed; the message names the member, its stage and the tensor.
    """
    rows = step._jacobian
    given: dict[str, Tensor | None] = {
        **{f"jacobian {name}".strip(): value for name, value in rows.materialize().items()},
        "gramian": rows.total_gramian, "norms": rows.total_squared_norms, "losses": step._losses,
        **{f"features {index}": tensor for index, tensor in enumerate(step._features)},
        **{f"feature_grads {index}": tensor for index, tensor in enumerate(step._feature_grads)},
        "targets": step._targets,
    }  # fmt: skip
    pairs = [(name, tensor.detach(), tensor.detach().clone()) for name, tensor in given.items() if tensor is not None]
    result = member.update(step) if stage == "update" else member.act(step)
    for name, tensor, before in pairs:
        if not torch.allclose(tensor, before, rtol=0, atol=0, equal_nan=True):
            raise PluginRunError(
                f"{member} modified `{name}` in place in `{stage}`, but other stages and the caller read the same "
                f"memory. It must modify a copy, made by `clone()`. {member.advice}"
            )
    return result
