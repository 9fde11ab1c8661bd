"""Gradient accumulation: add up the rows of several batches, and homogenize their sums once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gradhomog.autograd.backward import scaler_factor
from gradhomog.autograd.derivatives import SummedDerivatives
from gradhomog.autograd.fully_sharded import weigh_ranks
from gradhomog.autograd.homogenize import differentiate, homogenize
from gradhomog.autograd.inputs import Losses, Parameters, TaskLosses, shared_parameters
from gradhomog.autograd.loss_graph import Features, LossGraph, find_graph, shape_of
from gradhomog.autograd.loss_step import Heads, LossStep, agree_on_present, check_attached, check_options
from gradhomog.autograd.parameter_groups import Per, group_names
from gradhomog.errors import OptionError
from gradhomog.ranks.communicator import Communicator, GroupCommunicator, communicate
from gradhomog.ranks.dtensors import is_dtensor
from gradhomog.ranks.ranks import Ranks
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.reports import StepReport
from gradhomog.step.step import task_keys
from gradhomog.uncompiled import uncompiled


@dataclass
class _Sums:
    """Sums over batches for one task: loss, row, gradients of its head, features."""

    loss: Tensor
    row: dict[str, Tensor] = field(default_factory=dict)
    unshared: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    stage_features: list[tuple[list[Tensor], list[Tensor]]] = field(default_factory=list)


class Accumulation:
    """The context object of `gradhomog.accumulated`: call `add` for each batch; read `step` after the block."""

    def __init__(
        self, pipe: Pipeline, parameters: Mapping[str, Tensor], scaler: torch.amp.GradScaler | None, heads: Heads,
        per: Per, domains: Sequence[str] | None, inspect: bool, communicator: Communicator,
    ) -> None:  # fmt: skip
        self._pipe, self._shared, self._scaler = pipe, parameters, scaler
        self._heads, self._per, self._domains, self._inspect = heads, per, domains, inspect
        self._communicator = communicator
        self._finished = False
        self._factor = 1.0
        self._tasks = 0
        self._labels: tuple[str, ...] | None = None  # names of all tasks so far, None without names
        self._chosen: frozenset[int] | None = None  # slots of the chosen tasks, None before the first batch
        self._use_shared = False
        self._sums: dict[int, _Sums] = {}
        self._step: StepReport | None = None

    @property
    def step(self) -> StepReport:
        """The result of the step, available after the block."""
        if self._step is None:
            raise OptionError(
                "`step` must be read after the block `with gradhomog.accumulated(...)` has ended without an error."
            )
        return self._step

    @uncompiled
    def add(self, losses: Losses, features: Features | None = None) -> None:
        """Add the rows of a batch.

        `losses` and `features` as in `gradhomog.backward`; a task that is absent from a batch adds nothing. Divide
        losses that are means by the number of batches.

        Raises:
            OptionError: as in `backward`; the number of losses differs from that of earlier batches; the block has
                ended.
        """
        if self._finished:
            raise OptionError("`add` must be called in the block `with gradhomog.accumulated(...)`; it has ended.")
        check_options(self._pipe, features)
        check_attached(self._pipe)
        self._factor = scaler_factor(self._scaler, losses)
        given = find_graph(losses, self._shared, features)
        choosing = bool(self._pipe.requirements.choosing)
        agree_on_present(given, choosing and self._chosen is None, self._communicator)
        graph = self._select_chosen(given) if choosing else given
        self._use_shared |= graph.use_shared
        if not graph.tasks.slots:
            return
        slots = self._slots(graph.tasks)
        if isinstance(self._communicator, GroupCommunicator):
            graph = graph.without_inputs()
        graph = replace(graph, factor=self._factor, loss_weights=self._communicator.examples(slots))
        derivatives = differentiate(graph, self._pipe.requirements.reads_features)
        if isinstance(self._communicator, GroupCommunicator) and graph.sharded:
            weigh_ranks(derivatives, self._communicator, {})
        features, grads = derivatives.at_stages()
        rows = derivatives.rows()
        for index, slot in enumerate(slots):
            loss = graph.losses[index].detach().double()
            sums = self._sums.setdefault(slot, _Sums(torch.zeros_like(loss)))
            sums.loss = sums.loss + loss
            for leaf, gradient in zip(graph.unshared_leaves[index], derivatives.unshared_gradients[index], strict=True):
                if gradient is not None:
                    before = sums.unshared.get(id(leaf))
                    sums.unshared[id(leaf)] = (leaf, gradient if before is None else before[1] + gradient)
            sums.stage_features.append(([stage[index] for stage in features], [stage[index] for stage in grads]))
        for name in list(rows):  # one parameter after the other, to limit the number of copies of a row in memory
            for slot, gradient in zip(slots, rows.pop(name), strict=True):
                if gradient is not None:
                    row = self._sums[slot].row
                    row[name] = row[name] + gradient if name in row else gradient

    def _select_chosen(self, graph: LossGraph) -> LossGraph:
        """Return the losses of the tasks that homogenizers chose among those of the first batch; may be empty."""
        slots = self._slots(graph.tasks)
        if self._chosen is None:
            names = self._domains or self._labels
            present = tuple(names[slot] for slot in slots) if names else ()
            self._chosen = frozenset(slots[index] for index in self._pipe.choose(task_keys(tuple(slots), present)))
        return graph.select([index for index, slot in enumerate(slots) if slot in self._chosen])

    def _slots(self, tasks: TaskLosses) -> list[int]:
        """Return the slots of a batch's tasks among all tasks; tasks with names are matched by name."""
        if self._tasks == 0:
            self._tasks, self._labels = tasks.tasks, tasks.names
        if tasks.names is None or self._labels is None:
            if tasks.tasks != self._tasks or tasks.names != self._labels:
                raise OptionError(
                    f"every batch must have one loss per task, None for an absent task; got {_describe(tasks)}, but "
                    f"{self._tasks} in the first batch."
                )
            return list(tasks.slots)
        self._labels = (*self._labels, *(name for name in tasks.names if name not in self._labels))
        self._tasks = len(self._labels)
        return [self._labels.index(tasks.names[slot]) for slot in tasks.slots]

    def finish(self) -> None:
        """Homogenize the sums, and write the gradients."""
        self._finished = True
        if not self._sums:
            raise OptionError("`accumulated` requires at least one batch; got none. Call add(losses) in the block.")
        slots = tuple(sorted(self._sums))
        sums = [self._sums[slot] for slot in slots]
        tasks = TaskLosses([one.loss for one in sums], slots, self._tasks, self._labels, False)
        heads = [sorted(one.unshared.values(), key=lambda pair: shape_of(pair[0])) for one in sums]
        graph = LossGraph(
            tasks, self._shared, [[leaf for leaf, _ in pairs] for pairs in heads], use_shared=self._use_shared,
            sharded=any(map(is_dtensor, self._shared.values())), factor=self._factor,
            loss_weights=self._communicator.examples(slots),
        )  # fmt: skip
        derivatives = SummedDerivatives(
            graph,
            {name: [one.row.get(name) for one in sums] for name in self._shared},
            [[gradient for _, gradient in pairs] for pairs in heads],
            (_concatenate_features(sums, 0), _concatenate_features(sums, 1)),
        )
        self._sums = {}
        names = tuple(self._domains or self._labels or ())
        tasks.select_present(names, "domains")  # raises if their number differs from that of the tasks
        step = LossStep(
            self._pipe, graph, self._communicator, tasks, names, per=self._per, heads=self._heads,
            inspect=self._inspect, scaled=self._scaler is not None and self._scaler.is_enabled(),
        )  # fmt: skip
        self._step = homogenize(step, derivatives).write()


@contextmanager
def accumulated(
    pipe: Pipeline,
    *,
    parameters: Parameters,
    per: Per = "model",
    heads: Heads = "own",
    domains: Sequence[str] | None = None,
    scaler: torch.amp.GradScaler | None = None,
    inspect: bool = False,
    group: Ranks | ProcessGroup | None = None,
) -> Iterator[Accumulation]:
    """One homogenized step from several batches: row_i = Σ_b ∂L_i,b/∂θ over the batches that are added in the block.

    `gradhomog.backward` for each batch would homogenize the gradients of each batch separately and add up the
    directions. Here the gradients are added up first, so that N batches of one example give the same step as one batch
    of N examples. The step includes every task that was present in at least one batch. A homogenizer that chooses
    tasks, such as `tracked`, chooses among those of the first batch.

    Args: as in `gradhomog.backward`; `parameters` is required.

    Raises:
        OptionError: no batch was added; as in `backward`. If the block ends with an error, nothing is written.

    Cost: N passes for each batch, and one addition per gradient. Memory: N gradients, and those of a batch.

    >>> import torch, gradhomog
    >>> net, pipe = torch.nn.Linear(3, 2), gradhomog.pipeline("mgda")
    >>> with gradhomog.accumulated(pipe, parameters=net) as several:
    ...     for x in torch.randn(4, 5, 3):
    ...         several.add(net(x).square().mean(0) / 4)
    >>> net.weight.grad.shape, several.step.weights.shape
    (torch.Size([2, 3]), torch.Size([2]))
    """
    communicator = communicate(group, "batch")
    with communicator.raise_together():
        check_options(pipe, heads=heads, per=per, features_follow=True)
        shared = shared_parameters(parameters)
        group_names(list(shared), per)
        if communicator.size == 1 and any(map(is_dtensor, shared.values())):
            communicator = GroupCommunicator(communicator.ranks)  # gradients are DTensors also on one rank
        several = Accumulation(pipe, shared, scaler, heads, per, domains, inspect, communicator)
        yield several
        several.finish()


def _describe(tasks: TaskLosses) -> str:
    return f"losses of {', '.join(tasks.names)}" if tasks.names else f"{tasks.tasks} losses"


def _concatenate_features(sums: Sequence[_Sums], which: int) -> list[Tensor]:
    """Concatenate features, or gradients w.r.t. them, over all batches: `[tasks, batch, features]` for each stage.

    Raises:
        OptionError: tasks have different numbers of examples, because some were absent from a batch.
    """
    columns = [
        [torch.cat(stage) for stage in zip(*(batch[which] for batch in one.stage_features), strict=True)]
        for one in sums
    ]
    if len({tuple(tensor.shape for tensor in column) for column in columns}) > 1:
        raise OptionError(
            "a homogenizer reads features, so every task must be present in every batch; some tasks were absent from "
            "a batch. Accumulate batches of the same tasks."
        )
    return [torch.stack(stage) for stage in zip(*columns, strict=True)]
