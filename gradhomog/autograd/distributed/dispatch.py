"""The begin of every step across ranks: validate its options, and choose one of four sources of rows."""

from __future__ import annotations

from typing import Any

from gradhomog.autograd.derivatives import Derivatives
from gradhomog.autograd.distributed.batch import BatchRows
from gradhomog.autograd.distributed.fully_sharded import FullyShardedRows
from gradhomog.autograd.distributed.local import LocalRows
from gradhomog.autograd.distributed.tasks import TaskRows
from gradhomog.autograd.loss_step import LossStep
from gradhomog.autograd.row_source import RowSource
from gradhomog.errors import OptionError
from gradhomog.ranks.communicator import GroupCommunicator


def row_source_across_ranks(
    step: LossStep, derivatives: Derivatives, communicator: GroupCommunicator
) -> RowSource[Any]:
    """Return the source of the rows of all ranks; every rank receives the same direction.

    Raises:
        OptionError: the homogenizer or the option that is not supported across ranks; `examples` is a list whose length
            is not the number of tasks.
    """
    ranks, requirements, tasks = communicator.ranks, step.pipe.requirements, derivatives.graph.tasks.tasks
    ranks.check_pipeline(step.pipe)
    if derivatives.graph.create_graph:
        raise OptionError("`create_graph` must be False across ranks: their exchange of rows is not differentiable.")
    if step.level != "parameters" and (ranks.local or ranks.over == "tasks"):
        raise OptionError(
            f"level='features' requires Ranks('batch'), whose ranks have examples of the same tasks; got {ranks}."
        )
    for statistic in ("features", "kernel_traces") if ranks.over == "tasks" and not ranks.local else ():
        if found := requirements.readers[statistic]:
            raise OptionError(
                f"{' and '.join(found)} reads {statistic.replace('_', ' ')}, which ranks with different tasks do not "
                "exchange here. Use a learner, Ranks('tasks', local=True), or another homogenizer."
            )
    if isinstance(ranks.examples, list | tuple) and len(ranks.examples) != tasks:
        raise OptionError(
            f"`examples` must be a number or one number for each of the {tasks} tasks; got {len(ranks.examples)}."
        )
    if derivatives.graph.sharded:
        return FullyShardedRows(step, derivatives, communicator)
    if ranks.local:
        return LocalRows(step, derivatives, communicator)
    source = BatchRows if ranks.over == "batch" else TaskRows
    return source(step, derivatives, communicator)
