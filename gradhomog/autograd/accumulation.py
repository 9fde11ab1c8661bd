"""Gradient accumulation: add up the rows of several batches, and homogenize their sums once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from gradhomog.autograd import inputs
from gradhomog.autograd.backward import homogenize, make_derivatives, scaler_factor
from gradhomog.autograd.derivatives import SummedDerivatives
from gradhomog.autograd.loss_graph import SHAPE, LossGraph, find_graph
from gradhomog.autograd.loss_step import LossStep, StepOptions, check_present
from gradhomog.autograd.rows_over_ranks import weigh_ranks
from gradhomog.errors import OptionError
from gradhomog.ranks.communicator import GroupCommunicator, Ranks, communicate
from gradhomog.ranks.dtensors import any_dtensor
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.reports import StepReport
from gradhomog.step.step import task_keys
from gradhomog.uncompiled import uncompiled


@dataclass
class _Sums:
    """Sums over batches for one task: its loss, and gradients with their leaf, by the leaf's id.

    `stages`: for each batch the features at each stage, and the gradients w.r.t. them.
    """

    loss: Tensor
    gradients: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    stages: list[list[Tensor]] = field(default_factory=list)

    def add(self, loss: Tensor, gradients: Iterable[tuple[Tensor, Tensor | None]], stages: list[Tensor]) -> None:
        """Add a batch: the loss, leaves with their gradients, and features with the gradients w.r.t. them."""
        self.loss = self.loss + loss
        for leaf, gradient in gradients:
            if gradient is not None:
                before = self.gradients.get(id(leaf))
                self.gradients[id(leaf)] = (leaf, gradient if before is None else before[1] + gradient)
        self.stages.append(stages)


class Accumulation:
    """The context object of `gradhomog.accumulated`: call `add` for each batch; read `step` after the block."""

    def __init__(
        self, options: StepOptions, shared: Mapping[str, Tensor], scaler: torch.amp.GradScaler | None,
        domains: Sequence[str] | None,
    ) -> None:  # fmt: skip
        self._options, self._shared, self._scaler, self._domains = options, shared, scaler, domains
        self._finished = False
        self._factor: float | None = None
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
    def add(self, losses: inputs.Losses, features: inputs.Features | None = None) -> None:
        """Add the rows of a batch.

        `losses` and `features` as in `gradhomog.backward`; a task that is absent from a batch adds nothing. Divide
        losses that are means by the number of batches.

        Raises:
            OptionError: as in `backward`; the number of losses differs from that of earlier batches; the block has
                ended.
        """
        if self._finished:
            raise OptionError("`add` must be called in the block `with gradhomog.accumulated(...)`; it has ended.")
        options, requirements = self._options, self._options.pipe.requirements
        options.check_features(features)
        graph = find_graph(losses, self._shared, features)
        self._factor = None if self._scaler is None else scaler_factor(self._scaler, graph.tasks)
        graph = check_present(options, graph, bool(requirements.choosing) and self._chosen is None)
        slots = self._slots(graph.tasks)
        if requirements.choosing:
            chosen = [index for index, slot in enumerate(slots) if slot in self._chosen_slots(slots)]
            graph, slots = graph.select(chosen), [slots[index] for index in chosen]
        self._use_shared |= graph.use_shared
        if not slots:
            return
        graph = replace(graph, tasks=replace(graph.tasks, slots=tuple(slots)))
        derivatives = make_derivatives(graph, options, self._factor or 1.0)
        if isinstance(options.communicator, GroupCommunicator) and graph.sharded:
            weigh_ranks(derivatives, options.communicator, {})
        features, grads = derivatives.at_stages()
        for index, (slot, row) in enumerate(zip(slots, list(derivatives.iterate_scaled()), strict=True)):
            loss = graph.tasks.losses[index].detach().double()
            leaves = (*self._shared.values(), *graph.unshared_leaves[index])
            gradients = zip(leaves, (*row, *derivatives.unshared_gradients[index]), strict=True)
            sums = self._sums.setdefault(slot, _Sums(torch.zeros_like(loss)))
            sums.add(loss, gradients, [stage[index] for stage in (*features, *grads)])

    def _chosen_slots(self, slots: Sequence[int]) -> frozenset[int]:
        """Return the slots of the tasks that homogenizers chose among those of the first batch."""
        if self._chosen is None:
            names = self._domains or self._labels
            keys = task_keys(tuple(slots), tuple(names[slot] for slot in slots) if names else ())
            self._chosen = frozenset(slots[index] for index in self._options.pipe.choose(keys))
        return self._chosen

    def _slots(self, tasks: inputs.TaskLosses) -> list[int]:
        """Return the slots of a batch's tasks among all tasks; tasks with names are matched by name."""
        if self._tasks == 0:
            self._tasks, self._labels = tasks.tasks, tasks.names
        if tasks.names is None or self._labels is None:
            if tasks.tasks != self._tasks or tasks.names != self._labels:
                found = f"losses of {', '.join(tasks.names)}" if tasks.names else f"{tasks.tasks} losses"
                raise OptionError(
                    f"every batch must have one loss per task, None for an absent task; got {found}, but "
                    f"{self._tasks} in the first batch."
                )
            return list(tasks.slots)
        self._labels = (*self._labels, *(name for name in tasks.names if name not in self._labels))
        self._tasks = len(self._labels)
        return [self._labels.index(tasks.names[slot]) for slot in tasks.slots]

    @uncompiled
    def finish(self) -> None:
        """Homogenize the sums, and write the gradients."""
        self._finished = True
        if not self._sums:
            raise OptionError("`accumulated` requires at least one batch; got none. Call add(losses) in the block.")
        slots = tuple(sorted(self._sums))
        sums = [self._sums[slot] for slot in slots]
        tasks = inputs.TaskLosses([one.loss for one in sums], slots, self._tasks, self._labels, False)
        rows = [[one.gradients.pop(id(leaf), (None, None))[1] for leaf in self._shared.values()] for one in sums]
        heads = [sorted(one.gradients.values(), key=lambda pair: SHAPE(pair[0])) for one in sums]
        graph = LossGraph(
            tasks, self._shared, [[leaf for leaf, _ in pairs] for pairs in heads], use_shared=self._use_shared,
            sharded=any_dtensor(self._shared.values()),
        )  # fmt: skip
        derivatives = SummedDerivatives(
            graph, self._options.communicator.examples(slots), self._factor or 1.0, self._factor is not None,
            sums=rows, sums_at_stages=_concatenate_features(sums),
        )  # fmt: skip
        derivatives.unshared_gradients = [[gradient for _, gradient in pairs] for pairs in heads]
        self._sums = {}
        names = tuple(self._domains or self._labels or ())
        tasks.select_present(names, "domains")  # raises if their number differs from that of the tasks
        self._step = homogenize(LossStep(self._options, graph, tasks, names), derivatives).write()


@contextmanager
def accumulated(
    pipe: Pipeline,
    *,
    parameters: inputs.Parameters | None = None,
    per: inputs.Per = "model",
    heads: inputs.Heads = "own",
    domains: Sequence[str] | None = None,
    scaler: torch.amp.GradScaler | None = None,
    metric: Optimizer | None = None,
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
        if parameters is None:
            raise OptionError("`parameters` is required, because losses are added later. Pass the shared module.")
        shared = inputs.shared_parameters(parameters)
        if communicator.size == 1 and any_dtensor(shared.values()):
            communicator = GroupCommunicator(communicator.ranks)  # gradients are DTensors also on one rank
        options = StepOptions(pipe, communicator, per=per, heads=heads, inspect=inspect, metric=metric)
        inputs.group_names(list(shared), per)  # raise its errors before computing gradients
        several = Accumulation(options, shared, scaler, domains)
        yield several
        several.finish()


def _concatenate_features(sums: Sequence[_Sums]) -> tuple[list[Tensor], list[Tensor]]:
    """Concatenate features, and gradients w.r.t. them, over all batches: `[tasks, batch, features]` for each stage.

    Raises:
        OptionError: tasks have different numbers of examples, because some were absent from a batch.
    """
    columns = [[torch.cat(stage) for stage in zip(*one.stages, strict=True)] for one in sums]
    if len({tuple(tensor.shape for tensor in column) for column in columns}) > 1:
        raise OptionError(
            "a homogenizer reads features, so every task must be present in every batch; some tasks were absent from "
            "a batch. Accumulate batches of the same tasks."
        )
    stacked = [torch.stack(stage) for stage in zip(*columns, strict=True)]
    return stacked[: len(stacked) // 2], stacked[len(stacked) // 2 :]
