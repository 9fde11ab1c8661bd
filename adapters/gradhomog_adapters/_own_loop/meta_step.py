"""A meta-step over tasks that the user's own loop adapts to: collects their rows and homogenizes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from gradhomog import DataError, OptionError, Pipeline, StepReport, TaskKey
from gradhomog_adapters._own_loop.own_task import OwnTask, Wishes
from gradhomog_adapters._own_loop.restoring import Restored


class MetaStep:
    """What `meta_step` hands to the loop: `task` and `add`; for homogenizers that act within the network `query`,
    `support` and `transform`; and when all is done `report`."""

    def __init__(self, parameters: Mapping[str, Tensor], pipe: Pipeline, restored: Restored, inner_given: bool) -> None:
        self._parameters, self._pipe, self._restored, self._inner_given = parameters, pipe, restored, inner_given
        self._wishes = Wishes(pipe)
        self._task: OwnTask | None = None
        self._done: list[OwnTask] = []
        self._over = False
        self._report: StepReport | None = None

    @contextmanager
    def task(self, domain: str = "") -> Iterator[None]:
        """Within the context the network may be adapted to one task; afterwards all is as before, whatever happens.

        A task in which something raised takes no part in the step, should the loop catch it and go on.

        Raises:
            OptionError: another task is open, `add` was not called, or a parameter was written to in place.
        """
        if self._over:
            raise OptionError("`step.task` belongs within `with meta_step(...) as step:`; that block is over.")
        if self._task is not None:
            raise OptionError(f"`step.task` must not be nested; {self._task} is still open. End its `with` first.")
        if not isinstance(domain, str):
            raise OptionError(f"`domain` must be a text, the name of where the task comes from; got {domain!r}.")
        key = TaskKey(len(self._done), domain)
        task = OwnTask(key, self._wishes, self._parameters, self._restored, self._inner_given)
        self._task = task
        try:
            self._restored.begin()
            task.support()
            yield
        finally:
            self._task = None
            task.close()
            written = self._restored.written()
            self._restored.begin()
        if written:
            raise OptionError(
                f"in {task}, `{written[0]}` was written to in place, so that its row is not that of an inner loop (its "
                "value has been put back). Adapt with torchopt.MetaSGD, MetaAdam and so on; torch.optim writes."
            )
        if task.loss is None:
            raise OptionError(f"{task} has no query loss. Call step.add(loss) before its `with step.task(...)` ends.")
        self._done.append(task)

    def add(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Form the row of the open task from its query loss, a scalar, and free the graph.

        row = ∇ loss by the parameters as they were before the inner loop. Several losses of one task add up; all but
        the last need `retain_graph=True`, as they share the inner loop.

        Raises:
            OptionError: no task is open; the loss is no scalar, has no graph or does not depend on the parameters; a
                parameter that modules share came apart; the loss reaches into the graph of an earlier task; a
                homogenizer needs `query` or `transform` and it was not called.
        """
        self._open("add").add(loss, retain_graph)

    def query(self, targets: Tensor | None = None) -> None:
        """From now on the network runs on the task's query inputs; `targets` are their classes `[queries]`.

        Only homogenizers that act within the network (`isi`, `rotate`) need to know; `add` raises if one does.
        """
        self._open("query").query(targets)

    def support(self) -> None:
        """From now on the network runs on the task's support inputs again, as it does when a task begins."""
        self._open("support").support()

    def transform(self, features: Tensor) -> Tensor:
        """Query features `[queries, features]` as the homogenizers want the head to see them, of the same shape.

        Others pass unchanged: those of support inputs, and all outside a task. So a network may call it in every
        forward pass. Of several passes on query inputs, the last before `add` is the one that homogenizers learn from.
        """
        return features if self._task is None else self._task.transform(features)

    @property
    def report(self) -> StepReport:
        """Losses, norms, cosines and weights of the step, once its `with` block has ended; accuracies are None."""
        if self._report is None:
            raise OptionError("`step.report` is there once `with meta_step(...) as step:` has ended without an error.")
        return self._report

    def _open(self, method: str) -> OwnTask:
        if self._task is None:
            raise OptionError(f"`step.{method}` belongs to a task; none is open. Put it below `with step.task(...):`.")
        return self._task

    @contextmanager
    def collecting(self, encoder: nn.Module | None) -> Iterator[None]:
        """Within the context tasks may be added; afterwards the network is as it was before."""
        attached = nullcontext() if encoder is None else self._pipe.attached(encoder)
        try:
            with self._restored.entered(), attached:
                yield
        finally:
            self._over = True

    def finish(self) -> None:
        """Homogenize the rows and write the direction into `.grad`."""
        done, self._done = self._done, []
        if not done:
            raise OptionError("a meta-step needs at least one task; got none. Use `with step.task(...):` and step.add.")
        unused = {name for name in self._parameters if all(task.row[name] is None for task in done)}
        domains = tuple(task.key.domain for task in done) if any(task.key.domain for task in done) else ()
        losses = torch.stack([task.loss for task in done if task.loss is not None])
        needed = self._wishes.features
        targets = _stacked("targets", [task.targets for task in done], needed)
        result = self._pipe.homogenize(
            {name: _column(name, parameter, done) for name, parameter in self._parameters.items()},
            losses,
            domains=domains or None,
            features=_stacked("features", [task.features for task in done], needed),
            feature_grads=_stacked("feature_grads", [task.cotangents for task in done], needed),
            targets=targets[0] if targets else None,
            inspect=True,
        )
        for name, parameter in self._parameters.items():
            parameter.grad = None if name in unused else result.direction[name]
        self._report = StepReport.of(losses, result, domains)


def _column(name: str, parameter: Tensor, done: Sequence[OwnTask]) -> Tensor:
    """One parameter's rows `[tasks, *shape]`; each task's own are let go, so that they are not in memory twice."""
    rows = [task.row.pop(name) for task in done]
    return torch.stack([torch.zeros_like(parameter, requires_grad=False) if row is None else row for row in rows])


def _stacked(what: str, shown: Sequence[Sequence[Tensor]], needed: bool) -> list[Tensor]:
    """By tap `[tasks, queries, ...]`; empty unless every task showed its own."""
    if not all(shown):
        return []
    taps = list(zip(*shown, strict=True))
    for tap in taps:
        if len({tensor.shape for tensor in tap}) > 1:
            if not needed:
                return []
            raise DataError(
                f"`{what}` must have one shape in all tasks of a step; got {[tuple(tensor.shape) for tensor in tap]}. "
                "Give every task as many queries."
            )
    return [torch.stack(tap) for tap in taps]
