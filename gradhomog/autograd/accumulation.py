"""Gradient accumulation: add up the rows of several batches, and homogenize their sums once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gradhomog.autograd.apply import Heads, Options, compute_step, write
from gradhomog.autograd.backward import pipeline_reads_features, scaler_factor
from gradhomog.autograd.batch import Batch, Features, LossLeaves, differentiate, find_leaves, shape_of
from gradhomog.autograd.checks import check_attached, check_options
from gradhomog.autograd.derivatives import Gradients, LossGraph, SummedDerivatives
from gradhomog.autograd.distributed.dispatch import check_ranks, compute_across_ranks
from gradhomog.autograd.distributed.fully_sharded import weigh_ranks
from gradhomog.autograd.distributed.mean_losses import numbers_of_examples
from gradhomog.autograd.inputs import Losses, Parameters, TaskLosses, shared_parameters
from gradhomog.autograd.lazy import LazyJacobian
from gradhomog.autograd.parameter_groups import Per, group_names
from gradhomog.autograd.select_losses import agree_on_present, may_be_unused
from gradhomog.errors import OptionError
from gradhomog.ranks.collectives import Collectives, raise_on_all_ranks
from gradhomog.ranks.dtensors import collectives_if_dtensors
from gradhomog.ranks.ranks import Ranks, resolve_ranks
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.reports import StepReport
from gradhomog.step.task_key import task_keys
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
        per: Per, domains: Sequence[str] | None, inspect: bool, collectives: Collectives | None,
    ) -> None:  # fmt: skip
        self._pipe, self._shared, self._scaler = pipe, parameters, scaler
        self._heads, self._per, self._domains, self._inspect = heads, per, domains, inspect
        self._collectives = collectives
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
        reads = pipeline_reads_features(self._pipe)
        given = find_leaves(losses, self._shared, features)
        agree_on_present(given, bool(self._pipe.stages.choosing) and self._chosen is None, self._collectives)
        loss_leaves = self._select_chosen(given)
        self._use_shared |= loss_leaves.use_shared
        if not loss_leaves.tasks.slots:
            return
        slots = self._slots(loss_leaves.tasks)
        if self._collectives is not None:
            loss_leaves = loss_leaves.without_inputs()
        batch = differentiate(
            loss_leaves, factor=self._factor, through_features=reads, return_features=reads,
            loss_weights=numbers_of_examples(slots, self._collectives),
        )  # fmt: skip
        if self._collectives is not None and loss_leaves.sharded:
            weigh_ranks(batch, self._collectives, {})
        rows = batch.derivatives.rows()
        for index, slot in enumerate(slots):
            loss = batch.tasks.losses[index].detach().double()
            sums = self._sums.setdefault(slot, _Sums(torch.zeros_like(loss)))
            sums.loss = sums.loss + loss
            for leaf, gradient in batch.unshared_gradients[index]:
                if gradient is not None:
                    before = sums.unshared.get(id(leaf))
                    sums.unshared[id(leaf)] = (leaf, gradient if before is None else before[1] + gradient)
            features = [stage[index] for stage in batch.features]
            sums.stage_features.append((features, [stage[index] for stage in batch.feature_grads]))
        for name in list(rows):  # one parameter after the other, to limit the number of copies of a row in memory
            for slot, gradient in zip(slots, rows.pop(name), strict=True):
                if gradient is not None:
                    row = self._sums[slot].row
                    row[name] = row[name] + gradient if name in row else gradient

    def _select_chosen(self, loss_leaves: LossLeaves) -> LossLeaves:
        """Return the losses of the tasks that homogenizers chose among those of the first batch; may be empty."""
        if not self._pipe.stages.choosing:
            return loss_leaves
        slots = self._slots(loss_leaves.tasks)
        if self._chosen is None:
            names = self._domains or self._labels
            present = tuple(names[slot] for slot in slots) if names else ()
            self._chosen = frozenset(slots[index] for index in self._pipe.choose(task_keys(tuple(slots), present)))
        return loss_leaves.select([index for index, slot in enumerate(slots) if slot in self._chosen])

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
        unshared = [[leaf for leaf, _ in pairs] for pairs in heads]
        rows = {name: [one.row.get(name) for one in sums] for name in self._shared}
        weights = numbers_of_examples(slots, self._collectives)
        graph = LossGraph(tasks.losses, self._shared, unshared, self._factor, loss_weights=weights)
        unshared_gradients: list[Gradients] = [[gradient for _, gradient in pairs] for pairs in heads]
        derivatives = SummedDerivatives(graph, rows, unshared_gradients)
        features, grads = _concatenate_features(sums, 0), _concatenate_features(sums, 1)
        self._sums = {}
        batch = Batch(tasks, derivatives, unshared, features, grads)
        names = self._domains or self._labels or ()
        domains = tasks.select_present(names, "domains")  # raises if their number differs from that of the tasks
        if self._collectives is not None:
            domains = tuple(names)  # of all tasks, because others may be present on other ranks
        scaled = self._scaler is not None and self._scaler.is_enabled()
        options = Options(
            domains, per=self._per, heads=self._heads, inspect=self._inspect, scaled=scaled,
            collectives=self._collectives,
        )  # fmt: skip
        if self._collectives is not None:
            check_ranks(self._collectives.ranks, self._pipe, options, create_graph=False)
            self._step = write(compute_across_ranks(self._pipe, batch, options, self._collectives), self._heads)
            return
        unused = may_be_unused(self._pipe, self._use_shared)
        jacobian = LazyJacobian(derivatives, eager=True, may_be_unused=unused)
        self._step = write(compute_step(self._pipe, batch, jacobian, options), self._heads)


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
    ranks = resolve_ranks(group, "batch")
    collectives = None if ranks is None else Collectives(ranks)
    with raise_on_all_ranks(collectives):
        check_options(pipe, heads=heads, per=per, features_follow=True)
        shared = shared_parameters(parameters)
        group_names(list(shared), per)
        collectives = collectives_if_dtensors(collectives, shared, group)
        several = Accumulation(pipe, shared, scaler, heads, per, domains, inspect, collectives)
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
