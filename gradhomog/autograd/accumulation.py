"""Gradient accumulation: add up the rows of several batches, and homogenize their sums once."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from gradhomog.autograd import inputs
from gradhomog.autograd.backward import (
    ComputedStep,
    DeferredStep,
    homogenize,
    make_derivatives,
    reduce_losses,
    scaler_factor,
)
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

Numbers = float | Sequence[float] | Mapping[str, float]
"""The number of examples in a batch: of every task, or of each."""


@dataclass(frozen=True)
class _Batch:
    """The losses of one batch before they are differentiated.

    Attributes:
        examples: the numbers for the present tasks; None for losses that are parts of a sum.
    """

    graph: LossGraph
    examples: list[float] | None


@dataclass
class _Sums:
    """Sums over batches for one task, of values that are multiplied by the batch's factor and number of examples.

    Attributes:
        loss, weight: of the losses, and of the multipliers.
        gradients: each with its leaf, by the leaf's id.
        stages: for each batch the features at each stage, and the gradients w.r.t. them.
    """

    loss: Tensor
    weight: float = 0.0
    gradients: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    stages: list[list[Tensor]] = field(default_factory=list)

    def add(
        self, loss: Tensor, weight: float, gradients: Iterable[tuple[Tensor, Tensor | None]], stages: list[Tensor]
    ) -> None:
        """Add a batch: the loss, its multiplier, leaves with their gradients, features with those w.r.t. them."""
        self.weight += weight
        if weight:  # the mean over no labels is NaN
            self.loss = self.loss + weight * loss
        for leaf, gradient in gradients:
            if gradient is not None:
                before = self.gradients.get(id(leaf))
                self.gradients[id(leaf)] = (leaf, gradient if before is None else before[1] + gradient)
        self.stages.append(stages)

    def scale(self, factor: float) -> None:
        """Multiply the gradients by a number."""
        if factor != 1:
            self.gradients = {key: (leaf, factor * gradient) for key, (leaf, gradient) in self.gradients.items()}
            middle = len(self.stages[0]) // 2
            self.stages = [[*stage[:middle], *(factor * grad for grad in stage[middle:])] for stage in self.stages]


class _Window:
    """The batches of one step: the sums of their rows, and the step.

    Attributes:
        options: the options of the step, with the communicator of this step.
        adds_factors: with numbers of examples, the factor of the step is the sum of those of the batches.
    """

    def __init__(
        self, options: StepOptions, shared: Mapping[str, Tensor], domains: Sequence[str] | None, adds_factors: bool
    ) -> None:
        self.options, self._shared, self._domains, self._adds_factors = options, shared, domains, adds_factors
        self._factor, self._scaled = 0.0, False
        self._means: bool | None = None  # with numbers of examples; None before the first batch
        self._tasks = 0
        self._labels: tuple[str, ...] | None = None  # names of all tasks so far, None without names
        self._first = frozenset[int]()  # slots of the tasks of the first batch, if homogenizers choose among them
        self._chosen: frozenset[int] | None = None  # slots of the chosen tasks, None before the first batch
        self._unit: float | None = None  # the largest number of the first batch, by which numbers are divided
        self._use_shared = False
        self._finished = False
        self._sums: dict[int, _Sums] = {}

    @property
    def is_empty(self) -> bool:
        """True if no batch so far has a task."""
        return not self._sums

    @property
    def heads(self) -> list[Tensor]:
        """The leaves that are not shared of the batches so far."""
        shared = {id(leaf) for leaf in self._shared.values()}
        return [leaf for one in self._sums.values() for key, (leaf, _) in one.gradients.items() if key not in shared]

    @property
    def _over_ranks(self) -> bool:
        """True if ranks add up the rows of each task, and divide them by the number of examples of all ranks."""
        communicator = self.options.communicator
        return communicator.size > 1 and communicator.ranks.over == "batch" and not communicator.ranks.local

    def prepare(self, losses: inputs.Losses, features: inputs.Features | None, examples: Numbers | None) -> _Batch:
        """Validate the losses of a batch, and find the leaves that they depend on."""
        options, requirements = self.options, self.options.pipe.requirements
        options.check_features(features)
        if self._means not in (None, examples is not None):
            raise OptionError(
                "`examples` must be passed for all batches of a step or for none: with them losses are means over a "
                "batch, without them parts of a sum."
            )
        self._means = examples is not None
        graph = self._without_tasks(losses) or find_graph(losses, self._shared, features)
        numbers = None
        if examples is not None:
            if graph.sharded or options.communicator.ranks.examples is not None:
                reason = "parameters are sharded by fully_shard" if graph.sharded else "`group` has numbers too"
                raise OptionError(
                    f"`examples` of a batch must be None, because {reason}. Multiply each loss by its share of the "
                    "examples of all batches, or pass numbers in one place."
                )
            numbers = _numbers_of_examples(examples, graph.tasks)
            # They multiply losses before the backward pass, in which large numbers overflow half precision.
            self._unit = self._unit or max(numbers, default=0.0) or None
            numbers = [number / (self._unit or 1.0) for number in numbers]
        graph = check_present(options, graph, bool(requirements.choosing) and self._chosen is None)
        slots = self._slots(graph.tasks)
        kept = list(range(len(slots)))
        if requirements.choosing and slots:
            kept = [index for index in kept if slots[index] in self._chosen_slots(slots)]
        if numbers is not None and not self._over_ranks:
            kept = [index for index in kept if numbers[index]]
        self._use_shared |= graph.use_shared
        graph = graph.select(kept)
        graph = replace(graph, tasks=replace(graph.tasks, slots=tuple(slots[index] for index in kept)))
        return _Batch(graph, None if numbers is None else [numbers[index] for index in kept])

    def _without_tasks(self, losses: inputs.Losses) -> LossGraph | None:
        """Return the graph of a batch in which no task is present; None if there is one."""
        entries = losses.values() if isinstance(losses, Mapping) else losses
        if isinstance(losses, Tensor) or any(loss is not None for loss in entries):
            return None
        names = tuple(losses) if isinstance(losses, Mapping) else None
        return LossGraph(inputs.TaskLosses([], (), len(losses), names, False), self._shared, [], use_shared=False)

    def add(self, batch: _Batch, factor: float, scaled: bool, retain_graph: bool = False) -> None:
        """Differentiate the losses of a batch, and add its rows, multiplied by `factor`."""
        if self._finished:
            raise OptionError(
                "the backward pass of a batch must be that before the next batch; the step of this batch was taken "
                "before. Call backward() for each batch."
            )
        self._factor = self._factor + factor if self._means and self._adds_factors else factor
        self._scaled |= scaled
        graph, options = batch.graph, self.options
        if not graph.tasks.slots:
            return
        derivatives = make_derivatives(graph, options, factor, scaled, retain_graph, batch.examples)
        if isinstance(options.communicator, GroupCommunicator) and graph.sharded:
            weigh_ranks(derivatives, options.communicator, {})
        features, grads = derivatives.at_stages()
        grads = [factor * grad for grad in grads]
        for index, (slot, row) in enumerate(zip(graph.tasks.slots, list(derivatives.iterate_scaled()), strict=True)):
            loss = graph.tasks.losses[index].detach().double()
            leaves = (*self._shared.values(), *graph.unshared_leaves[index])
            gradients = zip(leaves, (*row, *derivatives.unshared_gradients[index]), strict=True)
            sums = self._sums.setdefault(slot, _Sums(torch.zeros_like(loss)))
            weight = factor if batch.examples is None else factor * batch.examples[index]
            sums.add(loss, weight, gradients, [stage[index] for stage in (*features, *grads)])

    def compute(self) -> ComputedStep:
        """Homogenize the sums."""
        self._finished = True
        if not self._sums:
            raise OptionError(
                "`accumulated` requires at least one batch with a task; got none. Call add(losses) in the block; "
                "across ranks, pass losses such as 0 * output.sum(), with 0 `examples`."
            )
        slots, communicator = tuple(sorted(self._sums)), self.options.communicator
        sums = [self._sums[slot] for slot in slots]
        weights = [one.weight if self._means else self._factor for one in sums]
        losses = [one.loss / weight if weight else one.loss for one, weight in zip(sums, weights, strict=True)]
        tasks = inputs.TaskLosses(losses, slots, self._tasks, self._labels, False)
        if self._means:
            for one, weight in zip(sums, weights, strict=True):
                one.scale((self._unit or 1.0) if self._over_ranks else self._factor / weight)
        rows = [[one.gradients.pop(id(leaf), (None, None))[1] for leaf in self._shared.values()] for one in sums]
        heads = [sorted(one.gradients.values(), key=lambda pair: SHAPE(pair[0])) for one in sums]
        graph = LossGraph(
            tasks, self._shared, [[leaf for leaf, _ in pairs] for pairs in heads], use_shared=self._use_shared,
            sharded=any_dtensor(self._shared.values()),
        )  # fmt: skip
        # The ranks of a batch divide by the sum of these numbers.
        unit = (self._unit or 1.0) / self._factor
        examples = [unit * weight for weight in weights] if self._means else communicator.examples(slots)
        derivatives = SummedDerivatives(
            graph, examples, self._factor, self._scaled, sums=rows,
            sums_at_stages=_concatenate_features(sums, 1 / self._factor),
        )  # fmt: skip
        derivatives.unshared_gradients = [[gradient for _, gradient in pairs] for pairs in heads]
        self._sums = {}
        names = tuple(self._domains or self._labels or ())
        tasks.select_present(names, "domains")  # raises if their number differs from that of the tasks
        return homogenize(LossStep(self.options, graph, tasks, names), derivatives)

    def _chosen_slots(self, slots: Sequence[int]) -> frozenset[int]:
        """Return the slots of the tasks that homogenizers chose among those of the first batch.

        Raises:
            OptionError: a task was absent from the first batch.
        """
        if self._chosen is None:
            self._first = frozenset(slots)
            names = self._domains or self._labels
            keys = task_keys(tuple(slots), tuple(names[slot] for slot in slots) if names else ())
            self._chosen = frozenset(slots[index] for index in self.options.pipe.choose(keys))
        if late := set(slots) - self._first:
            name = self._labels[min(late)] if self._labels else min(late)
            selector = self.options.pipe.requirements.choosing[0].selector
            raise OptionError(
                f"{selector} chooses among the tasks of the first batch of a step; task {name} is in a later one only. "
                "Add up batches of the same tasks, or use it without adding up batches."
            )
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


class Accumulation:
    """Batches of one step or of several steps, one after the other; see `gradhomog.accumulated`, which returns it."""

    def __init__(
        self, options: StepOptions, shared: Mapping[str, Tensor], domains: Sequence[str] | None,
        scaler: torch.amp.GradScaler | None, group: Ranks | ProcessGroup | None,
    ) -> None:  # fmt: skip
        self._options, self._shared, self._domains, self._scaler, self._group = options, shared, domains, scaler, group
        self._window: _Window | None = None
        self._block: AbstractContextManager[Self] | None = None
        self._step: StepReport | None = None

    @property
    def step(self) -> StepReport:
        """The result of the last step, available after the block, or after the backward pass of the last batch."""
        if self._step is None:
            raise OptionError(
                "`step` must be read after the block `with gradhomog.accumulated(...)` has ended without an error, or "
                "after the backward pass of the last batch."
            )
        return self._step

    @uncompiled
    def add(
        self, losses: inputs.Losses, features: inputs.Features | None = None, examples: Numbers | None = None
    ) -> None:
        """Differentiate the losses of a batch, and add its rows, in the block.

        `losses` and `features` as in `gradhomog.backward`; a task that is absent from a batch adds nothing. Without
        `examples` the rows are added up: divide losses that are means by the number of batches. With `examples`, for
        losses that are means over a part of the batch, the row of a task is the mean over all examples.

        Raises:
            OptionError: as in `backward`; the number of losses differs from that of earlier batches; `examples` has
                other tasks than `losses`, or was passed for some batches only; the block has ended.
        """
        if self._block is None or self._window is None:
            raise OptionError(
                "`add` must be called in the block `with gradhomog.accumulated(...) as several:`; it has ended, or has "
                "not begun. Without a block use several.loss(losses, last=...)."
            )
        batch = self._window.prepare(losses, features, examples)
        factor = None if self._scaler is None else scaler_factor(self._scaler, batch.graph)
        self._window.add(batch, factor or 1.0, factor is not None)

    @uncompiled
    def loss(
        self,
        losses: inputs.Losses,
        *,
        last: bool,
        examples: Numbers | None = None,
        features: inputs.Features | None = None,
        report: Callable[[StepReport], None] | None = None,
    ) -> Tensor:
        """Return the mean or sum of the losses of a batch, whose `backward()` adds the batch, without a block.

        As `gradhomog.loss`, for trainers that call `loss.backward()` for each batch. The backward pass of the last
        batch takes the step, and writes its gradients; the next batch begins another step. Arguments as in `add`.

        θ.grad += F/N Σ_i (C J)_i, or without 1/N for `reduction="sum"`. With `examples` J_i is the mean over all
        examples, and F the sum of the batches' incoming gradients: 1 for k times `(loss / k).backward()`. Without, J_i
        is the sum over the batches, and F the incoming gradient of the last one.

        Args:
            last: True for the last batch of a step. If no task is present, it must be a dict or list of None.
            report: called with the result of the step during the backward pass of the last batch.

        Raises:
            OptionError: as in `add` and `gradhomog.loss`; in the block `with gradhomog.accumulated(...)`.
        """
        if self._block is not None:
            raise OptionError(
                "`loss` must be called without a block `with gradhomog.accumulated(...)`; use `add` in it."
            )
        if not torch.is_grad_enabled():
            return reduce_losses(inputs.task_losses(losses, graph=False).losses, self._options.reduction)
        window = self._window = self._window or self._begin(adds_factors=True)
        with window.options.communicator.raise_together():
            batch = window.prepare(losses, features, examples)
        leaves = [*self._shared.values(), *(leaf for some in batch.graph.unshared_leaves for leaf in some)]
        if last:
            leaves += window.heads
            self._window = None
        compute = partial(self._add_last, window, batch) if last else partial(window.add, batch)
        deferred = DeferredStep(window.options.communicator, batch.graph.nodes, compute, report)
        given = batch.graph.tasks.losses or [leaves[0].new_zeros(())]
        return deferred.as_loss(reduce_losses(given, self._options.reduction), leaves)

    def _begin(self, adds_factors: bool) -> _Window:
        """Return the window of the next step, with a new communicator."""
        communicator = communicate(self._group, "batch")
        if communicator.size == 1 and any_dtensor(self._shared.values()):
            communicator = GroupCommunicator(communicator.ranks)  # gradients are DTensors also on one rank
        options = replace(self._options, communicator=communicator)
        return _Window(options, self._shared, self._domains, adds_factors)

    def _add_last(self, window: _Window, batch: _Batch, **options: Any) -> ComputedStep | None:
        """Add the last batch, and homogenize the sums; None if no batch of the window has a task, on one rank."""
        window.add(batch, **options)
        if window.is_empty and window.options.communicator.size == 1:
            return None
        computed = window.compute()

        def commit() -> None:
            computed.commit()
            self._step = computed.result

        return replace(computed, commit=commit)

    @contextmanager
    def _in_block(self) -> Iterator[Self]:
        window = self._window = self._begin(adds_factors=False)
        with window.options.communicator.raise_together():
            try:
                yield self
            finally:
                self._window = None
            self._step = window.compute().write()

    @uncompiled
    def __enter__(self) -> Self:
        self._block = self._in_block()
        return self._block.__enter__()

    @uncompiled
    def __exit__(self, *error: Any) -> bool | None:
        block, self._block = self._block, None
        assert block is not None  # by `__enter__`
        return block.__exit__(*error)


@uncompiled
def accumulated(
    pipe: Pipeline,
    *,
    parameters: inputs.Parameters | None = None,
    per: inputs.Per = "model",
    heads: inputs.Heads = "own",
    domains: Sequence[str] | None = None,
    reduction: inputs.Reduction = "mean",
    scaler: torch.amp.GradScaler | None = None,
    metric: Optimizer | None = None,
    inspect: bool = False,
    group: Ranks | ProcessGroup | None = None,
) -> Accumulation:
    """One homogenized step from several batches: row_i = Σ_b ∂L_i,b/∂θ, or Σ_b e_ib ∂L_i,b/∂θ / Σ_b e_ib with examples.

    e_ib is the number of examples of task i in batch b. `gradhomog.backward` for each batch would homogenize the
    gradients of each batch separately and add up the directions: with one example of one task in each batch, methods on
    rows then have no effect. Here the gradients are added up first, so that N batches of one example give the same step
    as one batch of N examples. The step includes every task that was present in at least one batch. A homogenizer that
    chooses tasks, such as `tracked`, chooses among those of the first batch.

    Two forms. In a block `with gradhomog.accumulated(...) as several:` call `several.add(losses)` for each batch; the
    end of the block writes the gradients. Where a trainer calls `loss.backward()`, create the object once, and let the
    loss of each batch be `several.loss(losses, last=...)`: the backward pass of the last batch writes them.

    Args: as in `gradhomog.backward` and `gradhomog.loss`; `parameters` is required. `scaler` is for `add`; the loss of
        `several.loss` is scaled by the trainer.

    Raises:
        OptionError: no batch was added; as in `backward`. If the block ends with an error, nothing is written.

    Cost: N passes for each batch, and one addition per gradient. Memory: N gradients, and those of a batch.

    >>> import torch, gradhomog
    >>> net, pipe = torch.nn.Linear(3, 2), gradhomog.pipeline("mgda")
    >>> with gradhomog.accumulated(pipe, parameters=net) as several:
    ...     for x in torch.randn(4, 5, 3):
    ...         several.add(net(x).square().mean(0), examples=len(x))
    >>> net.weight.grad.shape, several.step.weights.shape
    (torch.Size([2, 3]), torch.Size([2]))
    """
    communicator = communicate(group, "batch")
    with communicator.raise_together():
        if parameters is None:
            raise OptionError("`parameters` is required, because losses are added later. Pass the shared module.")
        shared = inputs.shared_parameters(parameters)
        options = StepOptions(
            pipe, communicator, per=per, heads=heads, inspect=inspect, reduction=reduction, metric=metric
        )
        inputs.group_names(list(shared), per)  # raise its errors before computing gradients
    return Accumulation(options, shared, domains, scaler, group)


def _numbers_of_examples(examples: Numbers, tasks: inputs.TaskLosses) -> list[float]:
    """Return the number of examples of each present task.

    Raises:
        OptionError: they are not those of the losses, or not finite numbers ≥ 0.
    """
    if isinstance(examples, Mapping):
        if tasks.names is None or set(examples) != set(tasks.names):
            names = list(tasks.names or ())
            raise OptionError(f"`examples` must have the keys of `losses`, {names}; got {[*examples]}.")
        examples = [float(examples[name]) for name in tasks.names]
    numbers = Ranks("batch", examples=examples).examples  # raises unless they are numbers
    if not isinstance(numbers, Sequence):
        return [float(numbers or 0.0)] * len(tasks.slots)
    if len(numbers) != tasks.tasks:
        raise OptionError(f"`examples` must have one number for each of the {tasks.tasks} losses; got {len(numbers)}.")
    return [float(numbers[slot]) for slot in tasks.slots]


def _concatenate_features(sums: Sequence[_Sums], factor: float) -> tuple[list[Tensor], list[Tensor]]:
    """Concatenate features, and gradients w.r.t. them times `factor`, over all batches: `[tasks, batch, features]`.

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
    middle = len(stacked) // 2
    return stacked[:middle], [factor * grads for grads in stacked[middle:]]
