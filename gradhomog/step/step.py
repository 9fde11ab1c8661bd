"""The record of one step: tasks, losses, gradients and statistics, of which a homogenizer's stages receive views."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from gradhomog.errors import DataError, OptionError, PluginRunError
from gradhomog.registry.specs import STATISTICS
from gradhomog.rows import Jacobian, as_jacobian


@dataclass(frozen=True)
class TaskKey:
    """The position of a task in its batch, and its name: the key of its loss in a dict, or the name of its domain."""

    slot: int
    domain: str = ""

    def by(self, key: str = "domain") -> str:
        """Return the key of the task's state: its name, or its position for `"slot"` and if it has no name."""
        return self.domain if self.domain and key == "domain" else str(self.slot)


@functools.lru_cache(maxsize=256)
def task_keys(slots: Sequence[int], domains: tuple[str, ...] = ()) -> tuple[TaskKey, ...]:
    """Return the keys of tasks in these slots, a tuple or range; `domains` has one name per slot, or none.

    Raises:
        OptionError: the number of names differs from the number of tasks; some tasks have a name and others have none;
            a name is not a string.
    """
    if domains and len(domains) != len(slots):
        raise OptionError(f"`domains` must contain one name for each of the {len(slots)} tasks; got {list(domains)}.")
    if any(not isinstance(name, str) or bool(name) != bool(domains[0]) for name in domains):
        raise OptionError(
            "all tasks of a batch must have names, non-empty strings, or none may have one, because the state of a "
            f"task is kept under its name; got {list(domains)}."
        )
    return tuple(map(TaskKey, slots, domains or ("",) * len(slots)))


KernelTraces = Callable[[int, torch.Generator], Tensor]
"""Called with the number of probes and a generator; returns the traces of the tangent kernels, float64 `[tasks]`."""


Rows = Tensor | Mapping[str, Tensor] | Jacobian

Value = TypeVar("Value")


class StageResult(NamedTuple):
    """The result of `mix` or `rows` with additional information; both stages may also return the value alone.

    Attributes:
        value: weights or a mixing matrix from `mix`, a Jacobian from `rows`.
        aux: any object, which `update`, `measured` and `paper_scale` read as `step.aux`.
        converged: False if an iterative solver stopped before it converged; gradhomog then issues a ConvergenceWarning.
    """

    value: Any
    aux: Any = None
    converged: bool = True


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """The inputs of a stage: immutable, with statistics that are computed once, on demand.

    Made once by the caller of the pipeline; each stage receives a view of it. In `mix` and `rows` the view contains the
    rows after earlier stages, with a graph only if `create_graph=True`; in `update` and `measured` the same rows,
    detached. Only the statistics declared in `HomogenizerSpec.needs` can be read.

    Attributes:
        keys: one `TaskKey` per task; tasks dropped by `nonfinite="drop"` have none.
        number: the number of steps that the pipeline completed before this one; 0 in what `make_step` returns.
        aux: the `aux` that this homogenizer's `mix` or `rows` returned; None before.
        absent: the keys of tasks that are not in the step, although the caller named them, or named tasks of earlier
            steps. A weight is relative to all of them: the mean of the weights is one over the tasks in the step and
            one task of each absent key.
    """

    # Features and the gradients w.r.t. them are those before the first `transform` stage and after each; `_transform`
    # is the index of the reader's own stage, -1 without one.
    keys: tuple[TaskKey, ...]
    _jacobian: Jacobian
    _losses: Tensor | None = None
    _features: Sequence[Tensor] = ()
    _feature_grads: Sequence[Tensor] = ()
    _targets: Tensor | None = None
    _kernel_traces: KernelTraces | None = None
    number: int = 0
    aux: Any = None
    _needs: frozenset[str] = STATISTICS
    _reader: object = "this homogenizer"
    _transform: int = -1
    _seed: int = 0
    _seed_offset: int = 0
    absent: tuple[TaskKey, ...] = ()

    @property
    def tasks(self) -> int:
        """N, the number of tasks."""
        return len(self.keys)

    @property
    def device(self) -> torch.device:
        """The device of rows and features. Losses, norms, Gramian and kernel traces are on the CPU."""
        return self._jacobian.device

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest dtype of the rows; statistics are float64, but only as precise as this dtype allows."""
        return self._jacobian.dtype

    @property
    def generator(self) -> torch.Generator:
        """A new generator on the CPU, seeded by the homogenizer's `seed`, the step's number and the parameters' group.

        Every access restarts the sequence: `update` can repeat the draws of `mix`, and all processes draw the same
        numbers.
        """
        return seeded_generator(self._seed + self._seed_offset, self.number)

    @property
    def losses(self) -> Tensor:
        """Losses of the tasks, float64 `[tasks]` on the CPU.

        Raises:
            OptionError: the caller passed none.
        """
        return self._passed(self._losses, "losses", "losses of the tasks", "losses=..., a tensor [tasks]")

    def gramian(self, parameters: str = "*") -> Tensor:
        """Inner products of the rows, float64 `[tasks, tasks]` on the CPU.

        With a glob pattern, over the parameters whose name matches.
        """
        if "gramian" not in self._needs:
            raise self._undeclared("gramian")
        return self._jacobian.total_gramian if parameters == "*" else self._jacobian.gramian(parameters)

    def exact_gramian(self) -> Tensor:
        """`gramian` with products in float64, where rows are in memory; takes 2 to 4 times as long."""
        exact = self.dtype == torch.float64 or self.gramian().requires_grad
        return self.gramian() if exact else self._jacobian.exact_gramian

    def norms(self, parameters: str = "*") -> Tensor:
        """Euclidean norms of the rows, float64 `[tasks]` on the CPU; with a glob pattern as in `gramian`."""
        if "norms" not in self._needs:
            raise self._undeclared("norms")
        return self._jacobian.norms(parameters)

    @property
    def jacobian(self) -> Jacobian:
        """The Jacobian."""
        if "jacobian" not in self._needs:
            raise self._undeclared("jacobian")
        return self._jacobian

    @property
    def features(self) -> Tensor:
        """The input of this homogenizer's `transform` (or the encoder's output), `[tasks, queries, features]`."""
        value = self._features[max(self._transform, 0)] if self._features else None
        return self._passed_feature(value, "features", ", features")

    @property
    def feature_grads(self) -> Tensor:
        """Gradient of each task's loss w.r.t. the output of `transform` (or the encoder's output), same shape."""
        value = self._feature_grads[self._transform + 1] if self._feature_grads else None
        return self._passed_feature(value, "feature_grads", ", features")

    @property
    def targets(self) -> Tensor:
        """Classes of the queries, int64 `[tasks, queries]` (float `[tasks, queries, outputs]` in regression)."""
        return self._passed_feature(self._targets, "targets", "")

    def kernel_traces(self, probes: int = 16) -> Tensor:
        """Traces of the tasks' tangent kernels divided by their numbers of residuals, float64 `[tasks]` on the CPU.

        Entry i is 1/n_i Σ_m ‖∂r_im/∂θ‖² over the residuals r_i1, …, r_in whose mean square is the loss. It is exact for
        n_i ≤ probes or if the caller passed the traces; otherwise an unbiased estimate from `probes` random vectors
        drawn from `generator`. Computed at each call, by up to `probes` backward passes per task.

        Raises:
            OptionError: the caller passed neither residuals nor traces.
        """
        compute = self._passed(
            self._kernel_traces, "kernel_traces", "residuals of the tasks, whose mean squares are the losses",
            "residuals=..., one tensor per task, to gradhomog.backward() or gradhomog.loss(), or kernel_traces=..., "
            "a tensor [tasks]",
        )  # fmt: skip
        traces = compute(probes, self.generator).cpu()
        return traces if torch.is_grad_enabled() else traces.detach()

    def matches(self, parameters: str) -> bool:
        """True if a glob pattern matches the name of any parameter."""
        return any(fnmatch.fnmatchcase(name, parameters) for name in self._jacobian.names)

    @property
    def names(self) -> list[str]:
        """The keys of the tasks' state: their names, or their positions, `"0"`, `"1"`, …, if they have none."""
        return [key.by() for key in self.keys]

    @property
    def absent_names(self) -> list[str]:
        """The keys of the absent tasks' state, as in `names`."""
        return [key.by() for key in self.absent]

    def view(self, homogenizer: Any, aux: Any = None) -> Step:
        """Return this step for a homogenizer that another one wraps: with the seed and `aux` of the wrapped one."""
        return replace(self, _seed=homogenizer.seed, aux=aux)

    def with_rows(
        self, jacobian: Jacobian, keys: tuple[TaskKey, ...], losses: Tensor | None, needs: frozenset[str]
    ) -> Step:
        """Return a step of other rows and losses, for a wrapped homogenizer that reads the statistics in `needs`."""
        return replace(
            self, keys=keys, _jacobian=jacobian, _losses=losses, _features=(), _feature_grads=(), _targets=None,
            _needs=needs,
        )  # fmt: skip

    def with_aux(self, aux: Any) -> Step:
        """Return this step with the `aux` that the homogenizer's `mix` or `rows` returned."""
        return self if aux is None else replace(self, aux=aux)

    def detach(self) -> Step:
        """Return the same step, detached from the graph."""
        reads_rows = self._needs & {"norms", "gramian", "jacobian"}  # otherwise they need not be computed
        return replace(
            self,
            _jacobian=self._jacobian.detach() if reads_rows else self._jacobian,
            _losses=None if self._losses is None else self._losses.detach(),
            _features=[tensor.detach() for tensor in self._features],
            _feature_grads=[tensor.detach() for tensor in self._feature_grads],
            aux=map_nested(lambda one: one.detach() if isinstance(one, Tensor | Jacobian) else one, self.aux),
        )  # fmt: skip

    def _undeclared(self, statistic: str) -> PluginRunError:
        return PluginRunError(
            f"{self._reader} reads `{statistic}`, but its `needs` are {sorted(self._needs)}. "
            f"Add '{statistic}' to `needs` in its HomogenizerSpec."
        )

    def _passed_feature(self, value: Tensor | None, name: str, shape: str) -> Tensor:
        return self._passed(value, "features", f"{name} of the tasks", f"{name}=..., a tensor [tasks, queries{shape}]")

    def _passed(self, value: Value | None, statistic: str, what: str, argument: str) -> Value:
        """Return what the caller of the pipeline passed; raise if it is missing, or not declared."""
        if statistic not in self._needs:
            raise self._undeclared(statistic)
        if value is None:
            raise OptionError(f"{self._reader} requires the {what}; got none. Pass {argument}, to combine().")
        return value


def seeded_generator(*numbers: int) -> torch.Generator:
    """Return a CPU generator seeded with 32 bits of a hash of the numbers."""
    state = 0
    for number in numbers:  # SplitMix64 (Steele et al. 2014): PyTorch's generator keeps 32 bits of a seed
        state = (state ^ number) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return torch.Generator().manual_seed(state >> 32)


_MASK = 2**64 - 1


def map_nested(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the values in nested tuples, lists and dicts."""
    if isinstance(value, tuple):
        items = [map_nested(function, item) for item in value]
        return tuple(items) if type(value) is tuple else type(value)(*items)  # a NamedTuple
    if isinstance(value, list):
        return [map_nested(function, item) for item in value]
    if isinstance(value, Mapping):
        return {name: map_nested(function, item) for name, item in value.items()}
    return function(value)


def make_step(
    jacobian: Rows, losses: Tensor | Sequence[float] | None = None, *, domains: Sequence[str] | None = None,
    slots: Sequence[int] | None = None, features: Sequence[Tensor] = (), feature_grads: Sequence[Tensor] = (),
    targets: Tensor | None = None, kernel_traces: Tensor | Sequence[float] | KernelTraces | None = None,
) -> Step:  # fmt: skip
    """Return the record of a step of given rows, for `Pipeline.combine`; a `RowSource` makes that of losses.

    Args:
        domains, targets, kernel_traces: as in `Pipeline.combine`.
        slots: positions of the tasks in the full batch, if some tasks are absent from this step.
        features, feature_grads: `[tasks, queries, features]` before and after each `transform` stage.

    Raises:
        OptionError, DataError.
    """
    rows = as_jacobian(jacobian)
    tasks = rows.tasks
    labels = [] if targets is None else [targets]
    for name, tensors in (("features", features), ("feature_grads", feature_grads), ("targets", labels)):
        for tensor in tensors:
            if tensor.dim() < (1 if name == "targets" else 2) or len(tensor) != tasks:
                raise DataError(
                    f"the first dimension of `{name}` must be {tasks}, the number of rows; got shape "
                    f"{tuple(tensor.shape)}."
                )
    keys = task_keys(range(tasks) if slots is None else tuple(slots), tuple(domains or ()))
    if losses is not None:
        losses = _check_losses(losses, tasks)
    if kernel_traces is not None and not callable(kernel_traces):
        kernel_traces = _given_traces(kernel_traces, tasks)
    return Step(keys, rows, losses, features, feature_grads, targets, kernel_traces)


def _given_traces(values: Tensor | Sequence[float], tasks: int) -> KernelTraces:
    """Return traces that the caller computed."""
    traces = values.cpu() if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.float64)
    if traces.shape != (tasks,) or traces.is_complex() or bool((traces < 0).any()):
        raise OptionError(
            f"`kernel_traces` must have shape [{tasks}], one number ≥ 0 per task; got {tuple(traces.shape)}"
            f"{f', {traces.tolist()}' if traces.numel() <= 8 else ''}."
        )
    return lambda probes, generator: traces.to(torch.float64)


def _check_losses(losses: Tensor | Sequence[float], tasks: int) -> Tensor:
    """Return the losses as a float64 tensor `[tasks]`."""
    if not isinstance(losses, Tensor):
        try:
            scalars = [x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64) for x in losses]
            losses = torch.stack([loss if loss.is_complex() else loss.double() for loss in scalars])
        except (TypeError, ValueError, RuntimeError) as cause:
            raise OptionError(f"`losses` must contain one number per task; got {losses!r}.") from cause
    if losses.shape != (tasks,):
        raise OptionError(f"`losses` must have shape [{tasks}], one per task; got {tuple(losses.shape)}.")
    if losses.is_complex():
        raise OptionError(f"`losses` must be real numbers; got {losses.dtype}.")
    return losses.to(torch.float64)


def features_at_stages(name: str, values: Tensor | Sequence[Tensor], transforms: int) -> Sequence[Tensor]:
    """Return the tensors before and after each `transform` stage; one tensor suffices for at most one such stage."""
    count = transforms + 1
    if isinstance(values, Tensor) and count <= 2:  # the input of the one transform, or the gradients w.r.t. its output
        return (values,) * count
    if isinstance(values, Tensor) or (values and len(values) != count):
        found = "a tensor" if isinstance(values, Tensor) else f"{len(values)} tensors"
        raise OptionError(
            f"`{name}` must be a sequence of {count} tensors, one before and one after each of the {count - 1} "
            f"homogenizers that transform features; got {found}. Pass the tensors that transform() returned, and the "
            "gradients of the losses w.r.t. each."
        )
    return values
