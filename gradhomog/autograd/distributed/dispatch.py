"""The begin of every step across ranks: validate its options, and choose one of four kinds of steps."""

from __future__ import annotations

from gradhomog.autograd.apply import ComputedStep, Options
from gradhomog.autograd.batch import Batch
from gradhomog.autograd.distributed.batch import batch_step
from gradhomog.autograd.distributed.fully_sharded import fully_sharded_step
from gradhomog.autograd.distributed.local import local_step
from gradhomog.autograd.distributed.tasks import tasks_step
from gradhomog.autograd.lazy import LazyJacobian, reads_rows
from gradhomog.errors import OptionError
from gradhomog.ranks.collectives import Collectives
from gradhomog.ranks.dtensors import is_dtensor
from gradhomog.ranks.ranks import Ranks
from gradhomog.step.pipelines import Pipeline


def check_ranks(ranks: Ranks, pipe: Pipeline, options: Options, create_graph: bool) -> None:
    """Raise for pipelines and options that are not supported across ranks.

    Raises:
        OptionError: the message names the homogenizer or the option.
    """
    ranks.check_pipeline(pipe)
    if create_graph:
        raise OptionError("`create_graph` must be False across ranks: their exchange of rows is not differentiable.")
    if options.level != "parameters" and (ranks.local or ranks.over == "tasks"):
        raise OptionError(
            f"level='features' requires Ranks('batch'), whose ranks have examples of the same tasks; got {ranks}."
        )
    if ranks.local:
        return
    for statistic in ("features", "kernel_traces") if ranks.over == "tasks" else ():
        if found := [m.selector for m in pipe.members if m.declares_needs and statistic in m.needs]:
            raise OptionError(
                f"{' and '.join(found)} reads {statistic.replace('_', ' ')}, which ranks with different tasks do not "
                "exchange here. Use a learner, Ranks('tasks', local=True), or another homogenizer."
            )


def compute_across_ranks(pipe: Pipeline, batch: Batch, options: Options, collectives: Collectives) -> ComputedStep:
    """Homogenize the rows of all ranks; every rank receives the same direction.

    Raises:
        OptionError: `examples` is a list whose length is not the number of tasks; options are not supported together.
        RankError: another rank raised before, or has other parameters, tasks or states.
        NonfiniteError, PluginRunError: on all ranks; nothing was written, no state assigned.
    """
    examples, tasks = collectives.ranks.examples, batch.tasks.tasks
    if isinstance(examples, list | tuple) and len(examples) != tasks:
        raise OptionError(
            f"`examples` must be a number or one number for each of the {tasks} tasks; got {len(examples)}."
        )
    if any(is_dtensor(parameter) for parameter in batch.derivatives.graph.shared.values()):
        return fully_sharded_step(pipe, batch, options, collectives)
    ranks = collectives.ranks
    if ranks.over == "batch" and not ranks.local:
        return batch_step(pipe, batch, options, collectives)
    eager = not ranks.local or reads_rows(pipe, options.per, options.scaled)
    jacobian = LazyJacobian(batch.derivatives, eager=eager, may_be_unused=True)
    if ranks.local:
        return local_step(pipe, batch, jacobian, options, collectives)
    return tasks_step(pipe, batch, jacobian, options, collectives)
