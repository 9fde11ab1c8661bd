"""The rows of a step across ranks, by one of four kinds of exchange; after it, every rank takes the same step.

* `BatchRows`: every rank has all tasks on its part of the batch.
* `TaskRows`: every rank has some of the tasks, and sends their rows.
* `LocalRows`: every rank homogenizes its own rows; directions are averaged.
* `FullyShardedRows`: hooks of `fully_shard` exchange the rows in the backward passes (`fully_sharded`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradhomog.autograd.derivatives import Derivatives, FeatureDerivatives
from gradhomog.autograd.lazy import LossRows, require_used
from gradhomog.autograd.lazy_exchange import ExchangedLossRows
from gradhomog.autograd.loss_graph import LossGraph
from gradhomog.autograd.loss_step import LossStep
from gradhomog.autograd.parameter_groups import group_names
from gradhomog.autograd.row_source import LeafGradients, OwnRows, RowSource, backpropagate, finite_direction
from gradhomog.errors import NonfiniteError, OptionError
from gradhomog.ranks.column_split import ColumnSplit
from gradhomog.ranks.communicator import GroupCommunicator
from gradhomog.ranks.exchange import average, collect_tasks, sum_tensors
from gradhomog.ranks.ranks import Ranks, pipeline_values
from gradhomog.ranks.replicas import check_replicas, compares_in_full, digests, tensors_to_compare
from gradhomog.ranks.split_rows import SplitRows
from gradhomog.rows import DenseRows, Direction, Jacobian
from gradhomog.step.step import KernelTraces, Step, task_keys


class ExchangedRows(RowSource[GroupCommunicator]):
    """A source that sends rows or parts of them; after it, every rank takes the same step."""

    exchanged = "rows"

    @abstractmethod
    def used(self) -> Tensor:
        """Return, for each rank and parameter, 1 if a loss of that rank depends on it, `[ranks, parameters]`."""

    def unused(self) -> Collection[str]:
        flags = self.used().any(0).tolist()
        unused = {name for name, used in zip(self._graph.shared, flags, strict=True) if not used}
        require_used(self._graph.shared, unused)
        return unused

    def sum_heads(self, factors: Mapping[int, float], totals: Mapping[int, float]) -> LeafGradients:
        """Return the gradients of the heads: sums over the ranks, divided by the `totals` of their tasks, by slot."""
        graph = self._graph
        per_task = zip(graph.tasks.slots, graph.unshared_leaves, self._derivatives.unshared_gradients, strict=True)
        entries = [
            (slot, leaf, None if gradient is None else gradient / totals[slot])
            for slot, leaves, gradients in per_task
            for leaf, gradient in zip(leaves, gradients, strict=True)
            if slot in totals
        ]
        gradients = {str(index): gradient for index, (*_, gradient) in enumerate(entries)}
        like = {str(index): leaf for index, (_, leaf, _) in enumerate(entries)}
        sums = sum_tensors(gradients, like, self._communicator)
        return [
            (leaf, factors[slot] * total)
            for (slot, leaf, _), total in zip(entries, sums.values(), strict=True)
            if slot in factors
        ]


class BatchRows(ExchangedRows):
    """The rows Σ_r w_ri J_ri."""

    def make_step(self) -> Step:
        step, graph, communicator = self._step, self._graph, self._communicator
        tasks = graph.tasks
        communicator.agree(tasks.tasks, {
            **values_to_compare(step, graph, communicator.ranks),
            "tasks": (tasks.tasks, step.names), "heads": head_shapes(graph),
        })  # fmt: skip
        means = mean_losses(self._derivatives, communicator, replicas_to_compare(step, graph, communicator.ranks))
        self._totals = means.totals
        slots = tuple(means.totals)
        names = tuple(step.names[slot] for slot in slots) if step.names else ()
        gathered = GatheredFeatures()
        if step.pipe.requirements.reads_features:
            gathered = gather_features(self._derivatives, step.targets, self._totals, communicator)
        jacobian = self._feature_rows() if step.level == "features" else self._lazy_rows(means.one_pass)
        return Step(
            task_keys(slots, names), jacobian, means.losses, gathered.features, gathered.feature_grads,
            gathered.targets, None if step.kernel_traces is None else self._mean_traces,
        )  # fmt: skip

    def _lazy_rows(self, one_pass: bool) -> Jacobian:
        groups = group_names(list(self._graph.shared), self._step.per).values()
        self._rows = ExchangedLossRows(self._derivatives, self._totals, one_pass, groups, self._communicator)
        if self._step.reads_rows:
            self._rows.stored()
        return Jacobian(self._rows)

    def used(self) -> Tensor:
        return self._used if self._step.level == "features" else self._rows.used

    def head_gradients(self, factors: Mapping[int, float]) -> LeafGradients:
        return self.sum_heads(factors, self._totals)

    def _mean_traces(self, probes: int, generator: torch.Generator) -> Tensor:
        """Return the means over the ranks of the traces tr K_i / n_i, which are means over residuals."""
        own: KernelTraces | None = self._step.kernel_traces
        assert own is not None  # by `make_step`
        parts = dict.fromkeys(self._totals, 0.0)
        failure: Exception | None = None
        try:
            traces, weights = own(probes, generator).tolist(), self._graph.loss_weights
            for slot, weight, trace in zip(self._graph.tasks.slots, weights, traces, strict=True):
                if weight > 0:
                    parts[slot] = weight * trace / self._totals[slot]
        except Exception as error:  # raised after the sum, because the other ranks wait in it
            failure = error
        return self._communicator.settle(failure, list(parts.values())).sum(0)

    # -- level="features" --------------------------------------------------------------------------------------------

    def _feature_rows(self) -> Jacobian:
        """Return the rows e_ri / Σ_s e_si ∂L_ri/∂z_r, whose columns are the features of all ranks.

        The features of different ranks belong to different examples, so norms and Gramians are sums over the ranks. The
        direction is backpropagated on each rank, and the gradients of the parameters are summed. All rows are sent to
        every rank only for homogenizers that read rows.
        """
        assert isinstance(self._derivatives, FeatureDerivatives)  # of level="features"
        index = {slot: row for row, slot in enumerate(self._graph.tasks.slots)}
        blocks = {
            name: torch.stack([
                rows[index[slot]] / total if slot in index else torch.zeros_like(rows[0])
                for slot, total in self._totals.items()
            ])
            for name, rows in self._derivatives.feature_rows().items()
        }  # fmt: skip
        self._own: dict[str, slice] = {}  # of gathered rows the examples of this rank
        if not (self._communicator.ranks.gather and self._step.pipe.requirements.readers["jacobian"]):
            columns = DenseRows(blocks)
            return Jacobian(SplitRows(columns, columns.row_like(), self._communicator))
        gathered = {name: gather_batch(name, rows, self._communicator) for name, rows in blocks.items()}
        self._own = {name: own for name, (_, own) in gathered.items()}
        return Jacobian(DenseRows({name: whole for name, (whole, _) in gathered.items()}))

    def to_parameters(self, direction: Direction) -> Direction:
        if self._step.level != "features":
            return direction
        shared = self._graph.shared
        found: dict[str, Tensor | None] = {}
        failure: Exception | None = None
        try:
            own = {name: part[self._own[name]] if name in self._own else part for name, part in direction.items()}
            found = backpropagate(self._derivatives, own)
        except Exception as error:  # raised after the sum, because the other ranks wait in it
            failure = error
        total = sum_tensors(found, shared, self._communicator)
        self._used = self._communicator.settle(failure, [found.get(name) is not None for name in shared])
        return finite_direction(total, self._graph.factor)  # the same numbers on all ranks


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
        rows = LossRows(self._derivatives, may_be_unused=True)
        own_rows = rows.stored()
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
        own = [*flags_of_used(graph.shared, rows.unused), *digests(compared.values())]
        gathered = communicator.all_gather_numbers([*values, *padding, *slots, *padding, *own])
        sizes = [max(counts), max(counts), len(rows.like), len(compared)]
        losses, all_slots, self._used, elements_of_all = torch.split(gathered, sizes, dim=1)
        check_replicas(compared, elements_of_all)
        present = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
        names = communicator.all_gather_names(step.present_names) if step.names else []
        groups = group_names(list(rows.like), step.per).values()
        split = ColumnSplit(rows.like, communicator.size, communicator.rank, groups)
        jacobian = collect_tasks(own_rows.row, counts, split, communicator)
        keys = task_keys(tuple(int(slot) for slot in all_slots[present].tolist()), tuple(names))
        return Step(keys, jacobian, losses[present])

    def used(self) -> Tensor:
        return self._used

    def head_gradients(self, factors: Mapping[int, float]) -> LeafGradients:
        return []


class LocalRows(OwnRows[GroupCommunicator]):
    """The rows of this rank; directions and gradients of heads are averaged over the ranks."""

    exchanged = "directions"
    _agreed = False

    def to_parameters(self, direction: Direction) -> Direction:
        communicator, graph = self._communicator, self._graph
        if not all(self._agree(len(graph.tasks.slots))):
            raise NonfiniteError(
                "the rows of another rank overflow."
            )  # the gradient scalers of all ranks skip the step
        total = average(direction, direction, communicator)
        compared = replicas_to_compare(self._step, graph, communicator.ranks)
        own = [*flags_of_used(graph.shared, self._rows.unused), *digests(compared.values())]
        used, elements_of_all = torch.split(
            communicator.all_gather_numbers(own), [len(graph.shared), len(compared)], dim=1
        )
        check_replicas(compared, elements_of_all)
        flags = used.any(0).tolist()
        self._unused_everywhere = {name for name, used in zip(graph.shared, flags, strict=True) if not used}
        return total

    def unused(self) -> Collection[str]:
        return self._unused_everywhere

    def head_gradients(self, factors: Mapping[int, float]) -> LeafGradients:
        # All leaves, because ranks may have dropped different tasks.
        graph = self._graph
        leaves = {
            str(index): leaf for index, leaf in enumerate(leaf for part in graph.unshared_leaves for leaf in part)
        }
        own = [
            None if gradient is None or slot not in factors else factors[slot] * gradient
            for slot, gradients in zip(graph.tasks.slots, self._derivatives.unshared_gradients, strict=True)
            for gradient in gradients
        ]
        means = average(dict(zip(leaves, own, strict=True)), leaves, self._communicator)
        return list(zip(leaves.values(), means.values(), strict=True))

    def overflow(self) -> None:
        if not self._agreed:
            self._agree(0)

    def _agree(self, count: int) -> list[int]:
        """Exchange the number of tasks, 0 after an overflow."""
        self._agreed = True
        same = values_to_compare(self._step, self._graph, self._communicator.ranks)
        return self._communicator.agree(count, {**same, "heads": head_shapes(self._graph)})


def replicas_to_compare(step: LossStep, graph: LossGraph, ranks: Ranks) -> dict[str, Tensor]:
    """Return what must have the same values on all ranks, by a description.

    The leaves of heads in every step, because ranks could use the heads in another order, but only the first element;
    shared parameters, states and whole heads in the steps of `compares_in_full`.
    """
    full = compares_in_full(step.pipe, ranks)
    found = tensors_to_compare(step.pipe, ranks, graph.shared) if full else {}
    for index, leaves in enumerate(graph.unshared_leaves):
        for place, leaf in enumerate(leaves):
            name = f"parameter {place} of the head of task {graph.tasks.label(index)}"
            found[name] = leaf if full else leaf[(slice(0, 1),) * leaf.dim()]
    return found


def values_to_compare(step: LossStep, graph: LossGraph, ranks: Ranks) -> dict[str, object]:
    """Return what must be the same on all ranks before they exchange rows, for `Communicator.agree`."""
    return {
        "calls": "step",
        "options": {
            "over": ranks.over, "local": ranks.local, "gather": ranks.gather,
            "examples": "none" if ranks.examples is None else "numbers", "level": step.level,
            "per": step.per, "compare_every": ranks.compare_every,
            "heads": step.heads, "inspect": step.inspect, "scaler": step.scaled,
            "residuals": step.kernel_traces is not None, "targets": step.targets is not None,
        },
        "parameters": [(name, tuple(value.shape), value.dtype) for name, value in graph.shared.items()],
        **pipeline_values(step.pipe),
    }  # fmt: skip


def head_shapes(graph: LossGraph) -> list[tuple[int, list[tuple[int, ...]]]]:
    """Return the shapes of the leaves of each task that has a head, which must be the same on all ranks."""
    pairs = zip(graph.tasks.slots, graph.unshared_leaves, strict=True)
    return [(slot, [tuple(leaf.shape) for leaf in leaves]) for slot, leaves in pairs if leaves]


def flags_of_used(names: Mapping[str, Tensor], unused: frozenset[str]) -> list[float]:
    """Return for each parameter 1 if a loss of this rank depends on it, else 0."""
    return [float(name not in unused) for name in names]


@dataclass(frozen=True)
class MeanLosses:
    """Means over ranks.

    Attributes:
        losses: the mean losses of the tasks that have examples on at least one rank.
        totals: for each of these tasks, by slot, the number of examples on all ranks, by which sums are divided.
        one_pass: True if on every rank a weighted sum takes one backward pass.
    """

    losses: Tensor
    totals: dict[int, float]
    one_pass: bool


def mean_losses(
    derivatives: Derivatives, communicator: GroupCommunicator, compared: Mapping[str, Tensor]
) -> MeanLosses:
    """Return the means; `compared`: tensors that must have the same values on all ranks."""
    tasks, weights = derivatives.graph.tasks, derivatives.graph.loss_weights
    own_counts, own_losses = [0.0] * tasks.tasks, [0.0] * tasks.tasks
    for slot, weight, loss in zip(tasks.slots, weights, tasks.losses, strict=True):
        own_counts[slot], own_losses[slot] = weight, loss.item()
    own = [*own_counts, *own_losses, derivatives.one_pass, *digests(compared.values())]
    gathered = communicator.all_gather_numbers(own)
    counts, losses, one_pass, elements_of_all = torch.split(gathered, [tasks.tasks] * 2 + [1, len(compared)], dim=1)
    check_replicas(compared, elements_of_all)
    totals = {slot: total for slot, total in enumerate(counts.sum(0).tolist()) if total > 0}
    if not totals:
        raise OptionError("`examples` must be positive for at least one task on one rank; got 0 everywhere.")
    sums = torch.where(counts > 0, counts * losses, 0.0).sum(0)
    return MeanLosses(torch.stack([sums[slot] / total for slot, total in totals.items()]), totals, bool(one_pass.all()))


class GatheredFeatures(NamedTuple):
    """Features, gradients w.r.t. them, and targets of the whole batch, as in `Step`."""

    features: Sequence[Tensor] = ()
    feature_grads: Sequence[Tensor] = ()
    targets: Tensor | None = None


def gather_features(
    derivatives: Derivatives, targets: Tensor | None, totals: Mapping[int, float],
    communicator: GroupCommunicator,
) -> GatheredFeatures:  # fmt: skip
    """Return the features of the whole batch; the gradients are those of the mean losses over the ranks.

    Args:
        totals: for each task that is present on at least one rank, by slot, the number of examples on all ranks.

    Raises:
        OptionError: on all ranks, a task is absent on some of them.

    Cost: each rank sends its features once, or once per task if they were transformed, and the gradients w.r.t. them.
    """
    absent = communicator.all_gather_numbers([float(derivatives.graph.tasks.slots != tuple(totals))])
    if absent.any():
        raise OptionError(
            "a homogenizer reads features, so every rank must have a loss for every task; rank "
            f"{int(absent.argmax())} does not. Give every rank examples of all tasks, or use another homogenizer."
        )
    features, feature_grads = derivatives.at_stages()
    grads = [
        torch.stack([row / total for row, total in zip(stage, totals.values(), strict=True)]) for stage in feature_grads
    ]
    return GatheredFeatures(
        [gather_batch("features", stage, communicator)[0] for stage in features],
        [gather_batch("features", stage, communicator)[0] for stage in grads],
        None if targets is None else gather_batch("targets", targets, communicator)[0],
    )


def gather_batch(name: str, value: Tensor, communicator: GroupCommunicator) -> tuple[Tensor, slice]:
    """Concatenate tensors `[tasks, batch, *shape]` of all ranks, whose batches may differ in size.

    Returns the whole tensor, and the position of this rank's examples in it.

    Raises:
        OptionError: on all ranks, the tensors have no batch, or other dimensions differ.
    """
    value = value.detach()  # of the graph, as ranks exchange numbers
    shape = (value.dim(), *value.shape[2:], *[0] * 8)[:8]  # equally many numbers on every rank
    shapes = [tuple(map(int, numbers)) for numbers in communicator.all_gather_numbers(shape).tolist()]
    if value.dim() < 2 or len(set(shapes)) > 1:
        raise OptionError(
            f"{name!r} of all ranks are concatenated for a homogenizer that reads them, so they must have the shape "
            f"[batch, ...] and may differ in the batch only; on this rank they are {list(value.shape[1:])}. Pad them, "
            "or use another homogenizer."
        )
    same = value.stride(0) == 0  # one tensor that was expanded to all tasks
    one = (value[:1] if same else value).transpose(0, 1).contiguous()
    sizes = [int(size) for size in communicator.all_gather_numbers([len(one)])[:, 0].tolist()]
    start = sum(sizes[: communicator.rank])
    padded = one.new_zeros(max(sizes), *one.shape[1:])
    padded[: len(one)] = one
    parts = communicator.all_gather(padded).view(len(sizes), *padded.shape)
    whole = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)]).transpose(0, 1)
    return whole.expand(len(value), *whole.shape[1:]) if same else whole, slice(start, start + len(one))
