"""`MetaStep`: collects the rows of the tasks of a custom loop and homogenizes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from gradhomog import DataError, OptionError, Pipeline, StepReport, TaskKey
from gradhomog_adapters._custom_loop.open_task import OpenTask, PipelineNeeds
from gradhomog_adapters._custom_loop.snapshot import Snapshot


class MetaStep:
    """Interface of `meta_step` for a custom loop.

    `task` and `add` collect rows; `query`, `support` and `transform` serve homogenizers that act within the network;
    `report` describes the finished step.
    """

    def __init__(self, parameters: Mapping[str, Tensor], pipe: Pipeline, snapshot: Snapshot, inner_given: bool) -> None:
        self._parameters, self._pipe, self._snapshot, self._inner_given = parameters, pipe, snapshot, inner_given
        self._needs = PipelineNeeds(pipe)
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
        if not isinstance(domain, str):
            raise OptionError(f"`domain` must be a string, the name of the task's domain; got {domain!r}.")
        key = TaskKey(len(self._done), domain)
        task = OpenTask(key, self._needs, self._parameters, self._snapshot, self._inner_given)
        self._task = task
        try:
            self._snapshot.restore()
            task.support()
            yield
        finally:
            self._task = None
            task.close()
            modified = self._snapshot.modified_parameters()
            self._snapshot.restore()
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

    def finish(self) -> None:
        """Homogenize the rows and write the direction into `.grad`."""
        done, self._done = self._done, []
        if not done:
            raise OptionError("a meta-step needs at least one task; got none. Use `with step.task(...):` and step.add.")
        unused = {name for name in self._parameters if all(task.row[name] is None for task in done)}
        domains = tuple(task.key.domain for task in done) if any(task.key.domain for task in done) else ()
        losses = torch.stack([task.loss for task in done if task.loss is not None])
        needed = self._needs.requires_features
        targets = _stack_features("targets", [task.targets for task in done], needed)
        result = self._pipe.homogenize(
            {name: _stack_rows(name, parameter, done) for name, parameter in self._parameters.items()},
            losses,
            domains=domains or None,
            features=_stack_features("features", [task.features for task in done], needed),
            feature_grads=_stack_features("feature_grads", [task.feature_grads for task in done], needed),
            targets=targets[0] if targets else None,
            inspect=True,
        )
        for name, parameter in self._parameters.items():
            parameter.grad = None if name in unused else result.direction[name]
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
