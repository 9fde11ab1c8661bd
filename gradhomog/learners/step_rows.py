"""The rows of a learner's meta-step: those of one process, or of tasks that are distributed over several ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.learners.tasks import TaskBatch
from gradhomog.ranks.collectives import Collectives
from gradhomog.ranks.column_split import ColumnSplit
from gradhomog.ranks.exchange import average, collect_tasks
from gradhomog.ranks.ranks import Ranks, pipeline_values
from gradhomog.ranks.replicas import check_replicas, compares_in_full, digests, tensors_to_compare
from gradhomog.rows import DenseJacobian, Jacobian
from gradhomog.rows.device_copies import task_index
from gradhomog.step.pipelines import PendingStep, Pipeline
from gradhomog.step.reports import TaskRows


@dataclass(frozen=True)
class StepRows:
    """The rows of one meta-step, with what homogenizers and the report read; of all ranks if there are several."""

    jacobian: Jacobian
    losses: Tensor
    accuracies: Tensor | None
    domains: Sequence[str]
    slots: Sequence[int]
    features: Sequence[Tensor]
    feature_grads: Sequence[Tensor]
    targets: Tensor

    def compute(self, pipe: Pipeline) -> PendingStep:
        """Compute the step of the pipeline; its report has the accuracies of the tasks in the step."""
        pending = pipe.compute(
            self.jacobian, self.losses, domains=self.domains or None, slots=self.slots,
            features=self.features, feature_grads=self.feature_grads, targets=self.targets, inspect=True,
        )  # fmt: skip
        if self.accuracies is None:
            return pending
        places = [self.slots.index(slot) for slot in pending.result.tasks]
        accuracies = self.accuracies[task_index(places, self.accuracies.device)]
        return replace(pending, result=replace(pending.result, accuracies=accuracies))


def rows_of_one_process(rows: TaskRows, batch: TaskBatch) -> StepRows:
    """Return the rows of one process."""
    return StepRows(
        DenseJacobian(rows.jacobian), rows.losses, rows.accuracies, batch.domains, [key.slot for key in batch.keys],
        rows.features, rows.feature_grads, batch.query_y,
    )  # fmt: skip


def homogenize_across_ranks(
    compute: Callable[[TaskBatch], TaskRows],
    batch: TaskBatch,
    parameters: Mapping[str, Tensor],
    pipe: Pipeline,
    ranks: Ranks,
) -> tuple[PendingStep, Set[str]]:
    """Compute the rows of this rank's tasks, and the step of the pipeline with those of all ranks.

    Also returns the names of the parameters that no task's loss depends on, on any rank.

    Args:
        compute: computes the rows of a batch.
        batch: the tasks of this rank.
        parameters: those of the learner, which must have the same values on all ranks.

    Raises:
        OptionError: `over` is not `"tasks"`; see also `Ranks.check_pipeline`.
        RankError: another rank raised before, or has other parameters or states.
    """
    first = Collectives(ranks)
    with first.raise_together():
        ranks.check_pipeline(pipe)
        if ranks.over != "tasks":
            raise OptionError(f"a learner's ranks have different tasks: `over` must be 'tasks'; got {ranks.over!r}.")
        counts = first.agree(len(batch), {
            "calls": "learner", **pipeline_values(pipe),
            "options": {"local": ranks.local, "gather": ranks.gather, "compare_every": ranks.compare_every},
        })  # fmt: skip
    offset = sum(counts[: first.rank])
    batch = replace(batch, slots=tuple(range(offset, offset + len(batch))))
    collectives = Collectives(ranks)
    with collectives.raise_together():
        rows = compute(batch)
        own = rows_of_one_process(rows, batch)
        if ranks.local:
            pending = own.compute(pipe)
        collectives.agree(len(batch), _shapes_to_compare(own, ranks))
    compared = tensors_to_compare(pipe, ranks, parameters) if compares_in_full(pipe, ranks) else {}
    own_numbers = [*(name in rows.unused for name in parameters), *digests(compared.values())]
    gathered_numbers = collectives.all_gather_numbers(own_numbers)
    flags, numbers = torch.split(gathered_numbers, [len(parameters), len(compared)], dim=1)
    check_replicas(compared, numbers)
    unused = {name for name, count in zip(parameters, flags.sum(0).tolist(), strict=True) if count == len(flags)}
    if ranks.local:
        direction = average(pending.result.direction, pending.result.direction, collectives)
        return replace(pending, result=replace(pending.result, direction=direction, exchanged="directions")), unused
    split = ColumnSplit(own.jacobian.row_like(), collectives.size, collectives.rank)
    gathered = StepRows(
        collect_tasks(own.jacobian.row, counts, split, collectives),
        _gather(rows.losses, counts, collectives),
        None if rows.accuracies is None else _gather(rows.accuracies, counts, collectives),
        collectives.all_gather_names(batch.domains),
        range(sum(counts)),
        [_gather(stage, counts, collectives) for stage in rows.features],
        [_gather(stage, counts, collectives) for stage in rows.feature_grads],
        _gather(batch.query_y, counts, collectives),
    )
    pending = gathered.compute(pipe)
    return replace(pending, result=replace(pending.result, exchanged="rows")), unused


def _shapes_to_compare(rows: StepRows, ranks: Ranks) -> dict[str, object]:
    """Return the shapes of what ranks exchange, for `Collectives.agree`; the number of tasks may differ."""
    like = rows.jacobian.row_like()
    parameters = [(name, tuple(value.shape), value.dtype) for name, value in like.items()]
    if ranks.local:  # only directions are exchanged
        return {"parameters": parameters}
    tensors = [rows.losses, rows.accuracies, *rows.features, *rows.feature_grads, rows.targets]
    return {
        "parameters": parameters,
        "sizes of tasks": [None if value is None else tuple(value.shape[1:]) for value in tensors],
    }


def _gather(value: Tensor, counts: Sequence[int], collectives: Collectives) -> Tensor:
    """Return the concatenation of tensors `[tasks, *shape]` of all ranks, with `counts[r]` tasks on rank r."""
    padded = value.new_zeros(max(counts), *value.shape[1:])
    padded[: len(value)] = value
    found = collectives.all_gather(padded).view(len(counts), *padded.shape)
    return torch.cat([part[:count] for part, count in zip(found, counts, strict=True)])
