"""`MetaStep` collects and homogenizes the rows of a custom loop's tasks; `Snapshot` restores network and optimizers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from operator import attrgetter
from typing import Any, Literal

import torch
import torchopt
from torch import Tensor, nn

from gradhomog import DataError, OptimizerMetric, OptionError, Pipeline, StepReport, TaskKey
from gradhomog_adapters._gradients import differentiate, zeros_for_missing
from gradhomog_adapters._inner_optimizer import closure_variable

Container = dict[str, Tensor | None]


class Snapshot:
    """Stores parameters (objects and values), buffers and the states of inner optimizers.

    Within `restore_on_exit` the module uses copies of its buffers, which are discarded after each task; the buffers
    themselves are never modified. A layer that is registered twice is stored once.
    """

    def __init__(self, net: nn.Module, inner: Sequence[torchopt.MetaOptimizer]) -> None:
        self._net = net
        names: dict[int, list[str]] = {}
        for name, parameter in net.named_parameters(remove_duplicate=False):
            if not parameter.is_leaf:
                raise OptionError(
                    f"the parameters of `net` must be leaf tensors when a meta-step starts; `{name}` is the "
                    "result of an inner loop. Restore them first: torchopt.recover_state_dict(net, state), "
                    "with a state extracted with by='reference', detach_buffers=True."
                )
            names.setdefault(id(parameter), []).append(name)
        self._tied = [group for group in names.values() if len(group) > 1]
        # TorchOpt replaces entries of these dicts, so the entries must be restored.
        held: list[Any] = [entries for part in net.modules() for entries in (part._parameters, part._buffers)]
        self._containers = [(container, dict(container)) for container in held]
        self._buffers = list(net.buffers())
        self._values = [
            (name, parameter, parameter.detach().clone())
            for name, parameter in net.named_parameters()
            if not isinstance(parameter, nn.parameter.UninitializedParameter)
        ]
        self._versions = [parameter._version for _, parameter, _ in self._values]
        for optimizer in inner:
            _check_inner(optimizer, held)
        self._inner = [(optimizer, optimizer.state_dict()) for optimizer in inner]

    @contextmanager
    def restore_on_exit(self) -> Iterator[None]:
        """Context in which `restore` can be called; on exit all state is restored, with the original buffers."""
        try:
            self.restore()
            yield
        finally:
            self._write_back({})

    def restore(self) -> list[str]:
        """Restore the state at the start of a task, with new copies of the buffers.

        Returns:
            Names of the parameters that were modified in place since the last call.
        """
        # By identity: a buffer that is registered twice is copied once.
        copies = {id(b): b.detach().clone().requires_grad_(b.requires_grad) for b in self._buffers}
        return self._write_back(copies)

    def _write_back(self, copies: Mapping[int, Tensor]) -> list[str]:
        for container, entries in self._containers:
            container.update({name: copies.get(id(entry), entry) for name, entry in entries.items()})
        for optimizer, state in self._inner:
            optimizer.load_state_dict(state)
        pairs = zip(self._values, self._versions, strict=True)
        modified = [entry for entry, version in pairs if entry[1]._version != version]
        with torch.no_grad():
            for _, parameter, value in modified:
                parameter.copy_(value)
        self._versions = [parameter._version for _, parameter, _ in self._values]
        return [name for name, _, _ in modified]

    def split_parameters(self) -> list[str]:
        """Names of a shared parameter that modules now hold as different tensors; empty if there is none."""
        for names in self._tied:
            if len({id(attrgetter(name)(self._net)) for name in names}) > 1:
                return names
        return []


def _check_inner(optimizer: object, containers: Sequence[Container]) -> None:
    if not isinstance(optimizer, torchopt.MetaOptimizer):
        raise OptionError(
            f"`inner` must be a TorchOpt meta-optimizer such as torchopt.MetaSGD, or several; got "
            f"{type(optimizer).__name__}."
        )
    adapted = {id(container) for group in optimizer.param_containers_groups for container in group}
    if adapted.isdisjoint(map(id, containers)):
        raise OptionError(
            f"`inner` must adapt `net` or a part of it; this {type(optimizer).__name__} adapts another module. "
            "Create it from the module that is passed to the meta-step."
        )
    state: Any = optimizer.state_dict()
    tensors: list[Any] = torchopt.pytree.tree_leaves(state)
    if any(isinstance(tensor, Tensor) and tensor.grad_fn is not None for tensor in tensors):
        raise OptionError(
            f"the state of `inner` must not depend on an earlier inner loop, but the state of this "
            f"{type(optimizer).__name__} has a graph. Create a new optimizer, or restore the state that it had before "
            "the inner loop."
        )
    if closure_variable(optimizer.impl.update, "dampening"):
        raise OptionError(
            "`inner` with momentum and dampening cannot be restored, because TorchOpt keeps a flag for the first "
            "step in a closure. Create a new one in each task, after `with step.task(...):`, and omit `inner`."
        )


def requires_features(pipe: Pipeline) -> bool:
    """True if a step of the pipeline requires query features; a homogenizer object without a spec may read them."""
    return bool(pipe.requirements.transforming or pipe.requirements.readers["features"])


class OpenTask:
    """A task while it is open, and then its results without a graph: loss, row, features and feature gradients.

    `row` contains a gradient by parameter name, None for parameters that no loss depends on.
    """

    def __init__(self, key: TaskKey, pipe: Pipeline, parameters: Mapping[str, Tensor], snapshot: Snapshot) -> None:
        self.key, self._pipe, self._parameters, self._snapshot = key, pipe, parameters, snapshot
        self._requires_features = requires_features(pipe)
        self._stores_features = self._requires_features or "features" in pipe.requirements.statistics
        self._part: Literal["support", "query"] = "support"
        self._queried = False
        self._stage_features: list[Tensor] = []  # of the last query pass
        self._differentiated: list[Tensor] = []  # those that `feature_grads` belong to
        self.loss: Tensor | None = None
        self.row: dict[str, Tensor | None] = dict.fromkeys(parameters)
        self.features: list[Tensor] = []
        self.feature_grads: list[Tensor] = []
        self.targets: list[Tensor] = []

    def __str__(self) -> str:
        return f"task {self.key.slot}" + (f" (domain {self.key.domain!r})" if self.key.domain else "")

    def support(self) -> None:
        self._part = "support"
        self._pipe.begin(self.key, "support")

    def query(self, targets: Tensor | None) -> None:
        self._part, self._queried = "query", True
        self._pipe.begin(self.key, "query")
        self.targets = [] if targets is None else [targets.detach()]

    def transform(self, features: Tensor) -> Tensor:
        if self._part != "query" or not self._stores_features:
            return features
        if features.dim() != 2:
            raise OptionError(f"`features` must have shape [queries, features]; got {tuple(features.shape)}.")
        if not features.requires_grad:  # the features of a frozen encoder are leaves: derivatives end there
            features = features.detach().requires_grad_()
        self._stage_features = self._pipe.transform(features[None], [self.key])
        return self._stage_features[-1][0]

    def add(self, loss: Tensor, retain_graph: bool) -> None:
        self._check_loss(loss)
        self._check_calls()
        row, feature_grads = self._differentiate(loss.reshape(()), retain_graph)
        for name, gradient in row.items():
            before = self.row[name]
            self.row[name] = before if gradient is None else gradient if before is None else before + gradient
        value = loss.detach().reshape(()).double()
        self.loss = value if self.loss is None else self.loss + value
        if not self._stage_features:
            return
        if self._stage_features is self._differentiated:  # a loss before used the same features
            self.feature_grads = [a + b for a, b in zip(self.feature_grads, feature_grads, strict=True)]
        else:
            self.features, self.feature_grads = [x[0].detach() for x in self._stage_features], feature_grads
            self._differentiated = self._stage_features

    def close(self) -> None:
        """Release the graph of the features."""
        self._stage_features, self._differentiated = [], []

    def _check_loss(self, loss: Tensor) -> None:
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise OptionError(f"`loss` of {self} must be a scalar tensor, the mean over its queries; got {found}.")
        if not loss.requires_grad:
            raise OptionError(
                f"`loss` of {self} must have a graph; it has none. Compute it from the network's outputs without "
                "torch.no_grad, detach or item."
            )
        if split := self._snapshot.split_parameters():
            raise OptionError(
                f"{' and '.join(f'`{name}`' for name in split)} are the same (tied) parameter, but TorchOpt's inner "
                "loop replaced them by different tensors. Adapt only modules that do not share it "
                "(MetaSGD(net.head)), or use gradhomog_adapters.maml, which keeps it tied."
            )

    def _check_calls(self) -> None:
        if (self._pipe.requirements.beginning or self._requires_features) and not self._queried:
            raise OptionError(
                f"the pipeline '{self._pipe}' distinguishes support and query inputs, but {self} did not call "
                "step.query. Call step.query() before the network runs on query inputs."
            )
        if self._requires_features and not self._stage_features:
            raise OptionError(
                f"the pipeline '{self._pipe}' requires query features, but {self} passed none. Between encoder and "
                "head write features = step.transform(features)."
            )

    def _differentiate(self, loss: Tensor, retain_graph: bool) -> tuple[dict[str, Tensor | None], list[Tensor]]:
        """Gradients w.r.t. the parameters, by name, and w.r.t. the features before and after each `transform` stage."""
        features = self._stage_features
        try:
            row, by_features = differentiate(loss, self._parameters, features, retain_graph)
        except RuntimeError as cause:
            if "second time" not in str(cause):  # PyTorch has no exception class for a freed graph
                raise
            raise OptionError(self._freed_message()) from cause
        if all(gradient is None for gradient in row.values()):
            raise OptionError(
                f"`loss` of {self} must depend on a parameter of `net` that requires grad; it depends on none. The "
                "graph is cut (detach, a copy of the network), or the loss is that of another network."
            )
        unused = bool(features) and by_features[-1] is None and features is not self._differentiated
        if unused and self._pipe.requirements.transforming:
            raise OptionError(f"`loss` of {self} must depend on the result of step.transform. Pass it to the head.")
        return row, [gradient[0].detach() for gradient in zeros_for_missing(by_features, features)]

    def _freed_message(self) -> str:
        if self.loss is not None:
            return (
                f"the graph of {self} was freed by step.add. Add the sum of its losses, or write "
                "step.add(loss, retain_graph=True) for all but the last."
            )
        return (
            f"`loss` of {self} depends on the graph of an earlier task: an inner optimizer keeps its state (momentum, "
            "moments) between tasks, or a tensor of one task is used in another. Write meta_step(net, pipe, "
            "inner=optimizer) for every optimizer that adapts `net`, or create a new one in each task."
        )


class MetaStep:
    """Interface of `meta_step` for a custom loop.

    `task` and `add` collect rows; `query`, `support` and `transform` serve homogenizers that act within the network;
    `report` describes the finished step.
    """

    def __init__(self, parameters: Mapping[str, Tensor], pipe: Pipeline, snapshot: Snapshot) -> None:
        self._parameters, self._pipe, self._snapshot = parameters, pipe, snapshot
        self._task: OpenTask | None = None
        self._done: list[OpenTask] = []
        self._ended = False
        self._report: StepReport | None = None

    @contextmanager
    def task(self, domain: str = "") -> Iterator[None]:
        """Context for one task, in which the network may be adapted; all state is restored on exit, also on errors.

        A task with an error is not part of the step, if the loop catches the error and continues.

        Raises:
            OptionError: another task is open, `add` was not called, or a parameter was modified in place.
        """
        if self._ended:
            raise OptionError("`step.task` must be used within `with meta_step(...) as step:`; that block has ended.")
        if self._task is not None:
            raise OptionError(f"`step.task` must not be nested; {self._task} is still open. End its `with` first.")
        task = OpenTask(TaskKey(len(self._done), domain), self._pipe, self._parameters, self._snapshot)
        self._task = task
        try:
            self._snapshot.restore()
            task.support()
            yield
        finally:
            self._task = None
            task.close()
            modified = self._snapshot.restore()
        if modified:
            raise OptionError(
                f"in {task}, `{modified[0]}` was modified in place, so its row is not a gradient of the loop "
                "(the value has been restored). Adapt with torchopt.MetaSGD, MetaAdam and so on, not with torch.optim."
            )
        if task.loss is None:
            raise OptionError(f"{task} has no query loss. Call step.add(loss) before its `with step.task(...)` ends.")
        self._done.append(task)

    def add(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Compute the row of the open task from its query loss, a scalar, and free the graph.

        row = ∇ loss w.r.t. the parameters before the inner loop. Several losses of one task are summed; all but the
        last need `retain_graph=True`, because they share the inner loop. Compute them from one pass on query inputs:
        homogenizers that act within the network use the features of the last pass only.

        Raises:
            OptionError: no task is open; the loss is not a scalar, has no graph or does not depend on the parameters; a
                shared parameter was replaced by different tensors; the loss depends on the graph of an earlier task; a
                homogenizer requires `query` or `transform`, which was not called.
        """
        self._require_task("add").add(loss, retain_graph)

    def query(self, targets: Tensor | None = None) -> None:
        """Declare that the network now runs on the task's query inputs; `targets` are their classes `[queries]`.

        Required only for homogenizers that act within the network (`isi`, `rotate`); `add` raises if it is missing.
        """
        self._require_task("query").query(targets)

    def support(self) -> None:
        """Declare that the network runs on the task's support inputs again, as at the start of a task."""
        self._require_task("support").support()

    def transform(self, features: Tensor) -> Tensor:
        """Apply the `transform` stages of homogenizers to query features `[queries, features]`; the shape is the same.

        Features of support inputs, and all features outside a task, are returned unchanged, so a network can call it in
        every forward pass. Homogenizers use the last pass on query inputs before `add`.
        """
        return features if self._task is None else self._task.transform(features)

    @property
    def report(self) -> StepReport:
        """The report of the step, after its `with` block, without the direction, which is in `.grad`."""
        if self._report is None:
            raise OptionError("`step.report` requires that `with meta_step(...) as step:` has ended without an error.")
        return self._report

    def _require_task(self, method: str) -> OpenTask:
        if self._task is None:
            raise OptionError(f"`step.{method}` requires an open task. Call it within `with step.task(...):`.")
        return self._task

    @contextmanager
    def open_block(self, encoder: nn.Module | None) -> Iterator[None]:
        """Context in which tasks are added; the network is restored on exit."""
        attached = nullcontext() if encoder is None else self._pipe.attached(encoder)
        try:
            with self._snapshot.restore_on_exit(), attached:
                yield
        finally:
            self._ended = True

    def finish(self, metric: OptimizerMetric | None) -> None:
        """Homogenize the rows in a metric, and write the direction into `.grad`."""
        done, self._done = self._done, []
        if not done:
            raise OptionError("a meta-step needs at least one task; got none. Use `with step.task(...):` and step.add.")
        unused = {name for name in self._parameters if all(task.row[name] is None for task in done)}
        domains = tuple(task.key.domain for task in done) if any(task.key.domain for task in done) else ()
        losses = torch.stack([task.loss for task in done if task.loss is not None])
        needed = requires_features(self._pipe)
        targets = _stack_features("targets", [task.targets for task in done], needed)
        rows = {name: _stack_rows(name, parameter, done) for name, parameter in self._parameters.items()}
        result = self._pipe.homogenize(
            rows if metric is None else metric.scale(rows),
            losses,
            domains=domains or None,
            features=_stack_features("features", [task.features for task in done], needed),
            feature_grads=_stack_features("feature_grads", [task.feature_grads for task in done], needed),
            targets=targets[0] if targets else None,
            inspect=True,
        )
        direction = result.direction if metric is None else metric.unscale(result.direction)
        for name, parameter in self._parameters.items():
            parameter.grad = None if name in unused else direction[name].to(parameter.dtype)
        self._report = replace(result, direction={})


def _stack_rows(name: str, parameter: Tensor, done: Sequence[OpenTask]) -> Tensor:
    """Stack one parameter's rows, `[tasks, *shape]`, and remove them from the tasks, to hold them in memory once."""
    rows = [task.row.pop(name) for task in done]
    return torch.stack([torch.zeros_like(parameter, requires_grad=False) if row is None else row for row in rows])


def _stack_features(name: str, tensors_by_task: Sequence[Sequence[Tensor]], needed: bool) -> list[Tensor]:
    """Stack the features, or the gradients w.r.t. them, of all tasks for each stage, `[tasks, queries, ...]`.

    Empty unless every task has them.
    """
    if not all(tensors_by_task):
        return []
    stages = list(zip(*tensors_by_task, strict=True))
    for stage in stages:
        if len({tensor.shape for tensor in stage}) > 1:
            if not needed:
                return []
            raise DataError(
                f"`{name}` must have one shape in all tasks of a step; got "
                f"{[tuple(tensor.shape) for tensor in stage]}. "
                "Use the same number of queries in every task."
            )
    return [torch.stack(stage) for stage in stages]
