"""The rows of a learner's meta-step and its homogenization, with the tasks of one process or of several ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.learners.results import TaskRows
from gradhomog.learners.tasks import TaskBatch
from gradhomog.ranks.column_split import ColumnSplit
from gradhomog.ranks.communicator import Communicator, GroupCommunicator
from gradhomog.ranks.exchange import average, collect_tasks
from gradhomog.ranks.ranks import pipeline_values
from gradhomog.ranks.replicas import check_replicas, compares_in_full, digests, tensors_to_compare
from gradhomog.rows import DenseRows, Direction, Jacobian
from gradhomog.rows.device_copies import task_index
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.reports import StepReport
from gradhomog.step.step import Step, TaskKey, task_keys


@dataclass(frozen=True)
class MetaStep:
    """A computed meta-step, before the direction is written and states are assigned.

    Attributes:
        report: without the direction, which would occupy the memory of a gradient.
        unused: names of the parameters that no task's loss depends on, on any rank.
        commit: assigns the states of the homogenizers.
    """

    direction: Direction
    report: StepReport
    unused: Set[str]
    commit: Callable[[], None]


def compute_meta_step(
    compute: Callable[[TaskBatch], TaskRows], batch: TaskBatch, parameters: Mapping[str, Tensor], pipe: Pipeline,
    communicator: Communicator,
) -> MetaStep:  # fmt: skip
    """Compute the rows of this rank's tasks, and the step of the pipeline with those of all ranks.

    Args:
        compute: computes the rows of a batch.
        batch: the tasks of this rank.
        parameters: those of the learner, which must have the same values on all ranks.

    Raises:
        OptionError: `over` is not `"tasks"`; see also `Ranks.check_pipeline`.
        RankError: another rank raised before, or has other parameters or states.
    """
    if isinstance(communicator, GroupCommunicator):
        return _across_ranks(compute, batch, parameters, pipe, communicator)
    rows = compute(batch)
    return _homogenize(make_step(rows, batch.keys, batch.query_y), rows.accuracies, rows.unused, pipe)


def make_step(rows: TaskRows, keys: Sequence[TaskKey], targets: Tensor) -> Step:
    """Return the record of a step of the tasks of one process."""
    return Step(
        tuple(keys), Jacobian(DenseRows(rows.jacobian)), rows.losses, rows.features, rows.feature_grads, targets
    )


def _homogenize(step: Step, accuracies: Tensor | None, unused: Set[str], pipe: Pipeline) -> MetaStep:
    pending = pipe.compute(step, inspect=True)
    report = replace(pending.result, direction={})
    if accuracies is not None:
        slots = [key.slot for key in step.keys]
        places = [slots.index(slot) for slot in report.tasks]  # a task may have been dropped
        report = replace(report, accuracies=accuracies[task_index(places, accuracies.device)])
    return MetaStep(pending.direction, report, unused, pending.commit)


def _across_ranks(
    compute: Callable[[TaskBatch], TaskRows], batch: TaskBatch, parameters: Mapping[str, Tensor], pipe: Pipeline,
    communicator: GroupCommunicator,
) -> MetaStep:  # fmt: skip
    ranks = communicator.ranks
    with communicator.raise_together():
        ranks.check_pipeline(pipe)
        if ranks.over != "tasks":
            raise OptionError(f"a learner's ranks have different tasks: `over` must be 'tasks'; got {ranks.over!r}.")
        counts = communicator.agree(len(batch), {
            "calls": "learner", **pipeline_values(pipe),
            "options": {"local": ranks.local, "gather": ranks.gather, "compare_every": ranks.compare_every},
        }, last=False)  # fmt: skip
        offset = sum(counts[: communicator.rank])
        batch = replace(batch, slots=tuple(range(offset, offset + len(batch))))
        rows = compute(batch)
        step = make_step(rows, batch.keys, batch.query_y)
        own = _homogenize(step, rows.accuracies, rows.unused, pipe) if ranks.local else None
        communicator.agree(len(batch), _shapes_to_compare(step, rows.accuracies, ranks.local))
    compared = tensors_to_compare(pipe, ranks, parameters) if compares_in_full(pipe, ranks) else {}
    own_numbers = [*(name in rows.unused for name in parameters), *digests(compared.values())]
    gathered_numbers = communicator.all_gather_numbers(own_numbers)
    flags, numbers = torch.split(gathered_numbers, [len(parameters), len(compared)], dim=1)
    check_replicas(compared, numbers)
    unused = {name for name, count in zip(parameters, flags.sum(0).tolist(), strict=True) if count == len(flags)}
    if own is not None:
        direction = average(own.direction, own.direction, communicator)
        return replace(own, direction=direction, report=replace(own.report, exchanged="directions"), unused=unused)

    def gather(value: Tensor) -> Tensor:
        """Return the concatenation of tensors `[tasks, *shape]` of all ranks."""
        padded = value.new_zeros(max(counts), *value.shape[1:])
        padded[: len(value)] = value
        found = communicator.all_gather(padded).view(len(counts), *padded.shape)
        return torch.cat([part[:count] for part, count in zip(found, counts, strict=True)])

    jacobian = step.jacobian
    split = ColumnSplit(jacobian.row_like(), communicator.size, communicator.rank)
    whole = Step(
        task_keys(range(sum(counts)), tuple(communicator.all_gather_names(batch.domains))),
        collect_tasks(jacobian.row, counts, split, communicator),
        gather(rows.losses), list(map(gather, rows.features)), list(map(gather, rows.feature_grads)),
        gather(batch.query_y),
    )  # fmt: skip
    accuracies = None if rows.accuracies is None else gather(rows.accuracies)
    found = _homogenize(whole, accuracies, unused, pipe)
    return replace(found, report=replace(found.report, exchanged="rows"))


def _shapes_to_compare(step: Step, accuracies: Tensor | None, local: bool) -> dict[str, object]:
    """Return the shapes of what ranks exchange, for `Communicator.agree`; the number of tasks may differ."""
    like = step.jacobian.row_like()
    parameters = [(name, tuple(value.shape), value.dtype) for name, value in like.items()]
    if local:  # only directions are exchanged
        return {"parameters": parameters}
    tensors = [step.losses, accuracies, *step._features, *step._feature_grads, step._targets]
    return {
        "parameters": parameters,
        "sizes of tasks": [None if value is None else tuple(value.shape[1:]) for value in tensors],
    }
