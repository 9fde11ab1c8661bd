"""The rows of a learner's meta-step and its homogenization, with the tasks of one process or of several ranks."""

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import partial

from torch import Tensor

from gradhomog.autograd.backward import ComputedStep, used_gradients
from gradhomog.autograd.optimizer_metric import OptimizerMetric
from gradhomog.errors import OptionError
from gradhomog.learners.results import TaskRows
from gradhomog.learners.tasks import TaskBatch
from gradhomog.ranks.communicator import Communicator, GroupCommunicator, pipeline_values
from gradhomog.ranks.exchange import ColumnSplit, average, collect_tasks
from gradhomog.ranks.replicas import compares_in_full, gather_numbers, tensors_to_compare
from gradhomog.rows import DenseRows, Jacobian
from gradhomog.rows.arithmetic import task_index
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.reports import StepReport
from gradhomog.step.step import Step, TaskKey, task_keys


def compute_meta_step(
    compute: Callable[[TaskBatch], TaskRows], batch: TaskBatch, parameters: Mapping[str, Tensor], pipe: Pipeline,
    communicator: Communicator, metric: OptimizerMetric | None = None,
) -> ComputedStep:  # fmt: skip
    """Compute the rows of this rank's tasks, and the step of the pipeline with those of all ranks.

    The report is without the direction, which would occupy the memory of a gradient.

    Args:
        compute: computes the rows of a batch.
        batch: the tasks of this rank.
        parameters: those of the learner, which must have the same values on all ranks.
        metric: that of the outer optimizer, or None for the Euclidean one.

    Raises:
        OptionError: `over` is not `"tasks"`; see also `Ranks.check_pipeline`.
        RankError: another rank raised before, or has other parameters or states.
    """

    def scaled(batch: TaskBatch) -> TaskRows:
        rows = compute(batch)
        return rows if metric is None else replace(rows, jacobian=metric.scale(rows.jacobian))

    if isinstance(communicator, GroupCommunicator):
        report, commit, unused = _across_ranks(scaled, batch, parameters, pipe, communicator)
    else:
        rows = scaled(batch)
        jacobian, unused = Jacobian(DenseRows(rows.jacobian)), rows.unused
        report, commit = _homogenize(rows, jacobian, batch.keys, batch.query_y, pipe)
    direction = report.direction if metric is None else metric.unscale(report.direction)
    gradients = used_gradients(direction, report, unused, parameters)
    return ComputedStep(replace(report, direction={}), gradients, commit)


def _homogenize(
    rows: TaskRows, jacobian: Jacobian, keys: tuple[TaskKey, ...], targets: Tensor, pipe: Pipeline
) -> tuple[StepReport, Callable[[], None]]:
    step = Step(keys, jacobian, rows.losses, rows.features, rows.feature_grads, targets)
    pending = pipe.compute(step, inspect=True)
    report = pending.result
    if rows.accuracies is not None:
        slots = [key.slot for key in keys]
        places = [slots.index(slot) for slot in report.tasks]  # a task may have been dropped
        report = replace(report, accuracies=rows.accuracies[task_index(places, rows.accuracies.device)])
    return report, pending.commit


def _across_ranks(
    compute: Callable[[TaskBatch], TaskRows], batch: TaskBatch, parameters: Mapping[str, Tensor], pipe: Pipeline,
    communicator: GroupCommunicator,
) -> tuple[StepReport, Callable[[], None], Set[str]]:  # fmt: skip
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
        jacobian = Jacobian(DenseRows(rows.jacobian))
        own = _homogenize(rows, jacobian, batch.keys, batch.query_y, pipe) if ranks.local else None
        like = jacobian.row_like()
        shapes: dict[str, object] = {"parameters": [(name, tuple(one.shape), one.dtype) for name, one in like.items()]}
        if not ranks.local:  # of what is exchanged; the number of tasks may differ
            tensors = [rows.losses, rows.accuracies, *rows.features, *rows.feature_grads, batch.query_y]
            shapes["sizes of tasks"] = [None if value is None else tuple(value.shape[1:]) for value in tensors]
        communicator.agree(len(batch), shapes)
    compared = tensors_to_compare(pipe, ranks, parameters) if compares_in_full(pipe, ranks) else {}
    (flags,) = gather_numbers(communicator, compared, [name in rows.unused for name in parameters])
    unused = {name for name, everywhere in zip(parameters, flags.all(0).tolist(), strict=True) if everywhere}
    if own is not None:
        report, commit = own
        direction = average(report.direction, report.direction, communicator)
        return replace(report, direction=direction, exchanged="directions"), commit, unused
    gather = partial(communicator.all_gather_parts, sizes=counts)
    gathered = TaskRows(
        {}, gather(rows.losses), None if rows.accuracies is None else gather(rows.accuracies),
        list(map(gather, rows.features)), list(map(gather, rows.feature_grads)), unused,
    )  # fmt: skip
    keys = task_keys(range(sum(counts)), tuple(communicator.all_gather_names(batch.domains)))
    split = ColumnSplit(like, communicator.size, communicator.rank)
    whole = collect_tasks(jacobian.row, counts, split, communicator)
    report, commit = _homogenize(gathered, whole, keys, gather(batch.query_y), pipe)
    return replace(report, exchanged="rows"), commit, unused
