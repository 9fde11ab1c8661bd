"""Rows of tasks that are distributed over ranks: each rank sends the rows of its tasks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradhomog.autograd.distributed.agreement import flags_of_used, replicas_to_compare, values_to_compare
from gradhomog.autograd.distributed.exchanged_rows import ExchangedRows
from gradhomog.autograd.lazy import LazyJacobian
from gradhomog.autograd.parameter_groups import group_names
from gradhomog.autograd.row_source import Gradients
from gradhomog.errors import OptionError
from gradhomog.ranks.column_split import ColumnSplit
from gradhomog.ranks.exchange import collect_tasks
from gradhomog.ranks.replicas import check_replicas, digests
from gradhomog.step.step import Step
from gradhomog.step.task_key import task_keys


class TaskRows(ExchangedRows):
    """The rows of the tasks of all ranks, in the order of the ranks.

    Raises:
        OptionError: a loss depends on a head, whose gradients other ranks would not receive.
    """

    def make_step(self) -> Step:
        step, graph, communicator = self._step, self._graph, self._communicator
        tasks = graph.tasks
        if any(graph.unshared_leaves):
            raise OptionError(
                "with Ranks('tasks') every trained tensor that a loss depends on must be in `parameters`, because "
                "other ranks would not receive the gradients of heads; a loss depends on others. Pass all parameters "
                "of the model."
            )
        jacobian = LazyJacobian(self._derivatives, eager=True, may_be_unused=True)
        counts = communicator.agree(len(tasks.slots), {
            **values_to_compare(step, graph, communicator.ranks),
            "tasks": "with names" if step.names else "without names",
        })  # fmt: skip
        totals = communicator.all_gather_numbers([tasks.tasks])[:, 0]
        first_slot = totals[: communicator.rank].sum()
        padding = [0.0] * (max(counts) - len(tasks.slots))
        slots = [float(first_slot) + slot for slot in tasks.slots]
        values = [loss.item() for loss in tasks.losses]
        compared = replicas_to_compare(step, graph, communicator.ranks)
        own = [*flags_of_used(graph.shared, jacobian.unused), *digests(compared.values())]
        gathered = communicator.all_gather_numbers([*values, *padding, *slots, *padding, *own])
        sizes = [max(counts), max(counts), len(jacobian.names), len(compared)]
        losses, all_slots, self._used, elements_of_all = torch.split(gathered, sizes, dim=1)
        check_replicas(compared, elements_of_all)
        present = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
        names = communicator.all_gather_names(step.present_names) if step.names else []
        groups = group_names(jacobian.names, step.per).values()
        split = ColumnSplit(jacobian.row_like(), communicator.size, communicator.rank, groups)
        rows = collect_tasks(jacobian.row, counts, split, communicator)
        keys = task_keys(tuple(int(slot) for slot in all_slots[present].tolist()), tuple(names))
        return Step(keys, rows, losses[present])

    def used(self) -> Tensor:
        return self._used

    def head_gradients(self, factors: Mapping[int, float]) -> Gradients:
        return []
