"""The rows of a step across ranks, by one of four kinds of exchange; after it, every rank takes the same step.

* `BatchSource`: every rank has all tasks on its part of the batch.
* `TasksSource`: every rank has some of the tasks, and sends their rows.
* `LocalSource`: every rank homogenizes its own rows; directions are averaged.
* `FullyShardedSource`: hooks of `fully_shard` exchange the rows in the backward passes.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, final

import torch
from torch import Tensor

from gradhomog.autograd import row_source
from gradhomog.autograd.derivatives import Derivatives
from gradhomog.autograd.inputs import group_names
from gradhomog.autograd.loss_graph import LossGraph
from gradhomog.autograd.loss_step import LossStep
from gradhomog.errors import NonfiniteError, OptionError
from gradhomog.ranks import exchange
from gradhomog.ranks.communicator import GroupCommunicator, pipeline_values
from gradhomog.ranks.dtensors import count_replicas, local_part, split_whole_tensors
from gradhomog.ranks.replicas import compares_in_full, gather_numbers, tensors_to_compare
from gradhomog.rows import DenseRows, Direction, Jacobian, LazyRows, PerTaskRows, StoredRows
from gradhomog.step.step import KernelTraces, Step, task_keys


class RanksSource(row_source.RowSource):
    """A source that sends rows or parts of them; after it, every rank takes the same step."""

    exchanged: Literal["nothing", "rows", "directions"] = "rows"
    _communicator: GroupCommunicator

    def agree(self, count: int, tasks: object = None) -> list[int]:
        """Exchange the number of tasks, and raise unless all ranks take the same step; see `Communicator.agree`."""
        options, graph, ranks = self._options, self._graph, self._communicator.ranks
        per_task = zip(graph.tasks.slots, graph.unshared_leaves, strict=True)
        return self._communicator.agree(count, {
            "calls": "step",
            "options": {
                "over": ranks.over, "local": ranks.local, "gather": ranks.gather,
                "examples": "none" if ranks.examples is None else "numbers", "level": options.level,
                "per": options.per, "compare_every": ranks.compare_every,
                "heads": options.heads, "inspect": options.inspect, "scaler": self._derivatives.scaled,
                "metric": options.metric is not None, "measure": options.measure,
                "residuals": self._step.kernel_traces is not None, "targets": self._step.targets is not None,
            },
            "parameters": [(name, tuple(value.shape), value.dtype) for name, value in graph.shared.items()],
            **pipeline_values(options.pipe),
            "tasks": tasks,
            "heads": [(slot, [tuple(leaf.shape) for leaf in leaves]) for slot, leaves in per_task if leaves],
        })  # fmt: skip

    def head_gradients(self, factors: Mapping[int, float]) -> row_source.LeafGradients:
        """Return sums over the ranks. With a factor of 0, gradients that are not finite are left out."""
        scales = self.head_scales(factors)
        entries = [
            (leaf, None if gradient is None or not scales[slot] else scales[slot] * gradient)
            for slot, leaf, gradient in self._derivatives.head_gradients()
            if slot in scales
        ]
        leaves = {str(index): leaf for index, (leaf, _) in enumerate(entries)}
        gradients = {str(index): gradient for index, (_, gradient) in enumerate(entries)}
        sums = exchange.sum_tensors(gradients, leaves, self._communicator)
        return list(zip(leaves.values(), sums.values(), strict=True))

    def head_scales(self, factors: Mapping[int, float]) -> Mapping[int, float]:
        """Return the factors of this rank's gradients of heads in their sum, with the same slots on all ranks."""
        return {slot: factor / self._communicator.size for slot, factor in factors.items()}

    def unused(self, used: Tensor) -> Collection[str]:
        """Return the names of the parameters that no loss depends on.

        `used`: for each rank and parameter, 1 if a loss of that rank depends on it, `[ranks, parameters]`.
        """
        unused = _unused(self._graph, used)
        row_source.require_used(self._graph.shared, unused)
        return unused


class BatchSource(RanksSource):
    """The rows Σ_r w_ri J_ri."""

    def make_step(self) -> Step:
        step, graph, communicator = self._step, self._graph, self._communicator
        self.agree(graph.tasks.tasks, (graph.tasks.tasks, step.names))
        losses, self._totals, one_pass = mean_losses(self._derivatives, communicator, replicas_to_compare(step))
        features, feature_grads, targets = list[Tensor](), list[Tensor](), None
        if self._options.pipe.requirements.reads_features:
            features, feature_grads, targets = gather_features(
                self._derivatives, step.targets, self._totals, communicator
            )
        traces = None if step.kernel_traces is None else self._mean_traces
        if self._options.level == "features":
            jacobian = self._feature_rows()
        else:
            groups = group_names(list(self._graph.shared), self._options.per).values()
            self._exchanged = ExchangedLossRows(self._derivatives, self._totals, one_pass, groups, communicator)
            rows = self.measured(self._exchanged)
            if self.reads_rows:
                rows.stored()
            jacobian = Jacobian(rows)
        return Step(step.keys(tuple(self._totals)), jacobian, losses, features, feature_grads, targets, traces)

    def measured_rows(self, tensors: Mapping[str, Tensor]) -> StoredRows:
        """Return Σ_r e_ri ∂L_ri/∂m / Σ_r e_ri for parameters m, on every rank."""
        names = {(slot, name): f"{slot}.{name}" for slot in self._totals for name in tensors}

        def compute() -> dict[str, Tensor | None]:
            rows, slots = self._derivatives.rows_of(tensors), self._graph.tasks.slots
            return {names[slot, name]: rows[name][slots.index(slot)] for slot, name in names if slot in slots}

        like = {text: tensors[name] for (_, name), text in names.items()}
        sums, used = sum_gradients(compute, like, self._communicator)
        row_source.require_measured(used.flatten().tolist())
        rows = {name: [sums[names[slot, name]] / total for slot, total in self._totals.items()] for name in tensors}
        return PerTaskRows(rows, tensors, 1 / self._derivatives.factor)

    def head_scales(self, factors: Mapping[int, float]) -> Mapping[int, float]:
        return {slot: factor / self._totals[slot] for slot, factor in factors.items()}

    def _mean_traces(self, probes: int, generator: torch.Generator) -> Tensor:
        """Return the means over the ranks of the traces tr K_i / n_i, which are means over residuals."""
        own: KernelTraces | None = self._step.kernel_traces
        assert own is not None  # by `make_step`
        parts = dict.fromkeys(self._totals, 0.0)
        failure: Exception | None = None
        try:
            traces, weights = own(probes, generator).tolist(), self._derivatives.loss_weights
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
        index = {slot: row for row, slot in enumerate(self._graph.tasks.slots)}
        blocks = {
            name: torch.stack([
                rows[index[slot]] / total if slot in index else torch.zeros_like(rows[0])
                for slot, total in self._totals.items()
            ])
            for name, rows in row_source.of_features(self._derivatives).feature_rows().items()
        }  # fmt: skip
        self._own: dict[str, slice] = {}  # of gathered rows the examples of this rank
        if not (self._communicator.ranks.gather and self._options.pipe.requirements.readers["jacobian"]):
            columns = DenseRows(blocks)
            return Jacobian(exchange.SplitRows(columns, columns.row_like(), self._communicator))
        gathered = {name: gather_batch(name, rows, self._communicator) for name, rows in blocks.items()}
        self._own = {name: own for name, (_, own) in gathered.items()}
        return Jacobian(DenseRows({name: whole for name, (whole, _) in gathered.items()}))

    def to_parameters(self, direction: Direction) -> tuple[Direction, Collection[str]]:
        if self._options.level != "features":
            return direction, self.unused(self._exchanged.used)

        def compute() -> dict[str, Tensor | None]:
            own = {name: part[self._own[name]] if name in self._own else part for name, part in direction.items()}
            return row_source.backpropagate(self._derivatives, own)

        total, used = sum_gradients(compute, self._graph.shared, self._communicator)
        total = row_source.finite_direction(total, self._derivatives.factor)  # the same numbers on all ranks
        return total, self.unused(used)


@final
class ExchangedLossRows(LazyRows):
    """The rows Σ_r J_ri / Σ_r e_ri of a batch over ranks, with losses that were multiplied by their e_ri.

    Every method must be called on all ranks in the same order.

    Args:
        derivatives: the derivatives of the losses of this rank.
        totals: for each task that is present on at least one rank, by slot, the number of examples on all ranks.
        one_pass: True if on every rank a weighted sum takes one backward pass.
        groups: the names of the parameters that are homogenized together.
    """

    requires_grad = False

    def __init__(
        self, derivatives: Derivatives, totals: Mapping[int, float], one_pass: bool, groups: Iterable[Sequence[str]],
        communicator: GroupCommunicator,
    ) -> None:  # fmt: skip
        self._derivatives, self._totals, self._one_pass = derivatives, totals, one_pass
        self._groups, self._communicator = groups, communicator
        self.like, self.tasks = derivatives.graph.shared, len(totals)
        self._used: Tensor | None = None

    @property
    def used(self) -> Tensor:
        """For each rank and parameter, 1 if a loss of that rank depends on it, `[ranks, parameters]`."""
        if self._used is None:
            self.stored()
        assert self._used is not None
        return self._used

    def compute(self) -> exchange.SplitRows:
        """Compute the rows by one backward pass per task, and send each during the next pass."""
        used: set[str] = set()
        failure: list[Exception] = []
        split = exchange.ColumnSplit(self.like, self._communicator.size, self._communicator.rank, self._groups)
        rows = exchange.sum_batches(self._partial_rows(used, failure), split, self._communicator)
        self._used = self._communicator.settle(failure[0] if failure else None, [name in used for name in self.like])
        return rows

    def sum_in_one_pass(self, weights: Tensor, divisor: float) -> Direction | None:
        if not self._one_pass:
            return None
        slots = self._derivatives.graph.tasks.slots
        # Relative to the largest, because `weighted_sum` regards small weights as a loss of digits.
        largest = max(self._totals.values())
        by_slot = dict(zip(self._totals, weights.tolist(), strict=True))
        relative = [
            by_slot[slot] * largest / self._totals[slot] if slot in by_slot and self._derivatives.counts[task] else 0.0
            for task, slot in enumerate(slots)
        ]

        def compute() -> dict[str, Tensor | None]:
            total = self._derivatives.weighted_sum(torch.tensor(relative, dtype=torch.float64))
            assert total is not None  # by `one_pass`
            # Without weights zeros, also for parameters that no loss depends on.
            return dict(zip(self.like, total, strict=True)) if any(relative) else {}

        sums, self._used = sum_gradients(compute, self.like, self._communicator)
        self.freed = not self._derivatives.retain_graph
        scale = 1 / (divisor * self._derivatives.factor * largest)
        return {name: part.mul_(scale) for name, part in sums.items()}

    def _partial_rows(self, used: set[str], failure: list[Exception]) -> Iterator[exchange.PartialRow | None]:
        """Yield this rank's part of each row when it is required; None if it has none, also after an error.

        `used`, `failure`: receive the names of the parameters that a loss depends on, and the error.
        """
        tasks, derivatives = self._derivatives.graph.tasks, self._derivatives
        computed = derivatives.iterate_scaled()
        for slot in range(tasks.tasks):
            row: dict[str, Tensor | None] = {}
            if slot in tasks.slots and not failure:
                try:
                    row = dict(zip(self.like, next(computed), strict=True))
                except Exception as error:  # raised after the exchange, because the other ranks wait in it
                    failure.append(error)
            used.update(name for name, gradient in row.items() if gradient is not None)
            if slot in self._totals:
                yield (row, 1 / (self._totals[slot] * derivatives.factor)) if row else None


class TasksSource(RanksSource):
    """The rows of the tasks of all ranks, in the order of the ranks; `head_scales` has no effect without heads.

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
        rows = row_source.LossRows(self._derivatives, may_be_unused=True)
        own_rows = rows.stored()
        counts = self.agree(len(tasks.slots), "with names" if step.names else "without names")
        totals = communicator.all_gather_numbers([tasks.tasks])[:, 0]
        first_slot = float(totals[: communicator.rank].sum())
        padding = [0.0] * (max(counts) - len(tasks.slots))
        own_losses = [*(loss.item() for loss in tasks.losses), *padding]
        own_slots = [*(first_slot + slot for slot in tasks.slots), *padding]
        used = [name not in rows.unused for name in graph.shared]
        losses, slots, self._used = gather_numbers(communicator, replicas_to_compare(step), own_losses, own_slots, used)
        present = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
        names = communicator.all_gather_names([key.domain for key in step.keys(tasks.slots)]) if step.names else []
        groups = group_names(list(rows.like), self._options.per).values()
        split = exchange.ColumnSplit(rows.like, communicator.size, communicator.rank, groups)
        jacobian = exchange.collect_tasks(own_rows.row, counts, split, communicator)
        return Step(task_keys(tuple(map(int, slots[present].tolist())), tuple(names)), jacobian, losses[present])

    def to_parameters(self, direction: Direction) -> tuple[Direction, Collection[str]]:
        return direction, self.unused(self._used)


class FullyShardedSource(RanksSource):
    """The rows of parameters that `fully_shard` splits over the ranks.

    Its hooks compute the mean over ranks, of which every rank receives the part that it stores. These parts are the
    columns of a Jacobian whose Gramian is summed over the ranks; the direction needs no exchange. Gradients of heads
    that are not sharded are divided by the number of ranks, by which the weights of the losses were multiplied.

    Raises:
        OptionError: an option is not supported with `fully_shard`.
    """

    written_before = "Parameters that are not shared received their gradients before: call optimizer.zero_grad()."

    def make_step(self) -> Step:
        step, graph, communicator, options = self._step, self._graph, self._communicator, self._options
        ranks = communicator.ranks
        if ranks.local or ranks.over != "batch":
            raise OptionError(
                f"parameters that are sharded by fully_shard require Ranks('batch'), because its hooks average over "
                f"the ranks; got {ranks}."
            )
        if options.heads != "own" or options.pipe.nonfinite == "drop":
            raise OptionError(
                "parameters that are sharded by fully_shard require heads='own' and a pipeline with "
                "nonfinite='raise', because each backward pass writes the gradients of the heads; got "
                f"heads={options.heads!r}, nonfinite={options.pipe.nonfinite!r}."
            )
        replicas = count_replicas(graph.shared, communicator)
        self.agree(len(graph.tasks.slots))
        losses = weigh_ranks(self._derivatives, communicator, replicas_to_compare(step))
        rows = self._derivatives.rows()
        self._used = torch.tensor([[any(part is not None for part in parts) for parts in rows.values()]])
        parts = {name: local_part(parameter) for name, parameter in graph.shared.items()}
        sharded = exchange.sharded_rows(
            PerTaskRows(rows, parts, 1 / self._derivatives.factor), graph.shared, replicas, communicator
        )
        gathers = ranks.gather and options.pipe.requirements.readers["jacobian"]
        jacobian = Jacobian(DenseRows(dict(sharded.by_parameter())) if gathers else sharded)
        return Step(step.keys(graph.tasks.slots), jacobian, losses)

    def to_parameters(self, direction: Direction) -> tuple[Direction, Collection[str]]:
        return split_whole_tensors(direction, self._graph.shared), self.unused(self._used)


class LocalSource(RanksSource):
    """The rows of this rank; directions and gradients of heads are averaged over the ranks."""

    exchanged = "directions"
    _agreed = False

    def to_parameters(self, direction: Direction) -> tuple[Direction, Collection[str]]:
        graph, communicator = self._graph, self._communicator
        self._agreed = True
        if not all(self.agree(len(graph.tasks.slots))):  # the gradient scalers of all ranks skip the step
            raise NonfiniteError("the rows of another rank overflow.")
        total = exchange.average(direction, direction, communicator)
        flags = [name not in self._rows.unused for name in graph.shared]
        (used,) = gather_numbers(communicator, replicas_to_compare(self._step), flags)
        return total, _unused(graph, used)

    def head_scales(self, factors: Mapping[int, float]) -> Mapping[int, float]:
        # Of all tasks, because ranks may have dropped different ones.
        return {slot: factors.get(slot, 0.0) / self._communicator.size for slot in self._graph.tasks.slots}

    def overflow(self) -> None:
        if not self._agreed:
            self.agree(0)  # 0 tasks


def replicas_to_compare(step: LossStep) -> dict[str, Tensor]:
    """Return what must have the same values on all ranks, by a description.

    The leaves of heads in every step, because ranks could use the heads in another order, but only the first element;
    shared parameters, states and whole heads in the steps of `compares_in_full`.
    """
    pipe, ranks, graph = step.options.pipe, step.options.communicator.ranks, step.graph
    full = compares_in_full(pipe, ranks)
    found = tensors_to_compare(pipe, ranks, graph.shared) if full else {}
    for index, leaves in enumerate(graph.unshared_leaves):
        for place, leaf in enumerate(leaves):
            name = f"parameter {place} of the head of task {graph.tasks.label(index)}"
            found[name] = leaf if full else leaf[(slice(0, 1),) * leaf.dim()]
    return found


def sum_gradients(
    compute: Callable[[], Mapping[str, Tensor | None]], like: Mapping[str, Tensor], communicator: GroupCommunicator
) -> tuple[Direction, Tensor]:
    """Return sums over the ranks, and for each rank and parameter 1 if it has a gradient, `[ranks, parameters]`.

    `compute`: returns the gradients of this rank by name; called once. Its errors are raised after the sum, because the
    other ranks wait in it.
    """
    found: Mapping[str, Tensor | None] = {}
    failure: Exception | None = None
    try:
        found = compute()
    except Exception as error:
        failure = error
    sums = exchange.sum_tensors(found, like, communicator)
    return sums, communicator.settle(failure, [found.get(name) is not None for name in like])


def _unused(graph: LossGraph, used: Tensor) -> set[str]:
    return {name for name, flag in zip(graph.shared, used.any(0).tolist(), strict=True) if not flag}


def mean_losses(
    derivatives: Derivatives, communicator: GroupCommunicator, compared: Mapping[str, Tensor]
) -> tuple[Tensor, dict[int, float], bool]:
    """Return means over ranks.

    `compared`: see `gather_numbers`.

    Returns:
        The mean losses of the tasks that have examples on at least one rank; for each of these tasks, by slot, the
        number of examples on all ranks, by which sums are divided; True if on every rank a weighted sum takes one
        backward pass.
    """
    tasks = derivatives.graph.tasks
    own_counts, own_losses = [0.0] * tasks.tasks, [0.0] * tasks.tasks
    for slot, weight, loss in zip(tasks.slots, derivatives.loss_weights, tasks.losses, strict=True):
        own_counts[slot], own_losses[slot] = weight, loss.item()
    counts, losses, passes = gather_numbers(communicator, compared, own_counts, own_losses, [derivatives.one_pass()])
    totals = {slot: total for slot, total in enumerate(counts.sum(0).tolist()) if total > 0}
    if not totals:
        raise OptionError("`examples` must be positive for at least one task on one rank; got 0 everywhere.")
    sums = torch.where(counts > 0, counts * losses, 0.0).sum(0)
    means = torch.stack([sums[slot] / total for slot, total in totals.items()])
    return means, totals, bool(passes.all())


def weigh_ranks(derivatives: Derivatives, communicator: GroupCommunicator, compared: Mapping[str, Tensor]) -> Tensor:
    """Return the mean of each task's losses over the ranks; the rows of a fully sharded model get the same weights.

    Its hooks divide by the number of ranks. `compared`: see `gather_numbers`.

    Raises:
        OptionError: `examples` is zero on all ranks for a task.
    """
    losses, totals, _ = mean_losses(derivatives, communicator, compared)
    if len(totals) < len(derivatives.graph.tasks.slots):
        raise OptionError("`examples` must be positive for every task on at least one rank; omit the losses of others.")
    pairs = zip(derivatives.loss_weights, totals.values(), strict=True)
    derivatives.loss_weights = [communicator.size * examples / total for examples, total in pairs]
    return losses


def gather_features(
    derivatives: Derivatives, targets: Tensor | None, totals: Mapping[int, float], communicator: GroupCommunicator
) -> tuple[list[Tensor], list[Tensor], Tensor | None]:
    """Return features, gradients w.r.t. them, and targets of the whole batch, as in `Step`.

    The gradients are those of the mean losses over the ranks.

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
    return (
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
    whole = communicator.all_gather_parts(one, sizes).transpose(0, 1)
    return whole.expand(len(value), *whole.shape[1:]) if same else whole, slice(start, start + len(one))
