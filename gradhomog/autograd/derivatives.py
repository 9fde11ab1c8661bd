"""Gradients of losses w.r.t. shared parameters and heads: one pass per task, or one pass for their weighted sum."""

import functools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradhomog.autograd.loss_graph import LossGraph
from gradhomog.autograd.optimizer_metric import OptimizerMetric
from gradhomog.errors import OptionError
from gradhomog.ranks.dtensors import check_not_gathered, local_part

Gradients = list[Tensor | None]
"""One gradient per tensor, None if the outputs do not depend on it."""


def plain_gradient(leaf: Tensor, gradient: Tensor | None) -> Tensor | None:
    """Return the gradient of a plain tensor or parameter as a plain, dense tensor.

    If one leaf belongs to a subclass of Tensor, such as labelled collocation points, `torch.autograd.grad` returns the
    gradients of all leaves in that subclass.
    """
    if gradient is None:
        return None
    if type(gradient) is not Tensor and type(leaf) in (Tensor, nn.Parameter):
        gradient = gradient.as_subclass(Tensor)
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


# As in PyTorch's accumulation of gradients; if a version lacks the private method, every gradient is copied.
_use_count: Callable[[Tensor], int] = getattr(Tensor, "_use_count", lambda tensor: 2)


def copy_shared_gradients(gradients: Gradients) -> None:
    """Copy the gradients, in place of the list, that something else holds and that must not become a `.grad`.

    Autograd returns one tensor for two leaves, or views of one, where an operation passes its gradient on; a custom
    function may return a tensor that it keeps, and a hook may have stored it.
    """
    addresses: set[int] = set()
    for index, gradient in enumerate(gradients):
        if gradient is None or gradient.requires_grad:
            continue
        address = gradient.data_ptr()
        if _use_count(gradient) > 1 or sys.getrefcount(gradients[index]) > _REFERENCES or address in addresses:
            gradients[index] = gradient.clone()
        elif address:  # 0 for a tensor without elements
            addresses.add(address)


def _references_in_a_loop() -> int:
    """Return the number of references to a tensor that only a list and the loop variable hold."""
    entries: Gradients = [torch.zeros(())]
    for index, _ in enumerate(entries):
        return sys.getrefcount(entries[index])
    raise AssertionError


_REFERENCES = _references_in_a_loop()


SMALLEST_SHARE = 1e-2
"""The smallest weight, relative to the largest, by which a head's gradient is divided again.

With smaller ones half precision underflows.
"""

TaskGradients = dict[str, Gradients]
"""For each shared parameter one gradient per task, None if the loss does not depend on it."""

Start = tuple[Sequence[Tensor], Sequence[Tensor]]
"""The tensors at which a backward pass begins, and the gradients w.r.t. them."""


@dataclass
class Derivatives(ABC):
    """The gradients of the losses, either one per task or as a weighted sum from one pass.

    Attributes:
        graph: the losses with their leaves.
        loss_weights: factor of each loss, 1 on one process; across ranks the number of its examples on this rank. They
            multiply the losses, not their gradients, because a backward pass through a layer that all ranks compute
            together, such as SyncBatchNorm, adds up gradients of other ranks' losses.
        factor: factor of every gradient, against underflow in half precision.
        scaled: True with a gradient scaler. On overflow infinity is then written, so that the scaler skips the step.
        create_graph, retain_graph: as in `torch.autograd.grad`.
        unshared_gradients: for each task the gradients of `graph.unshared_leaves`, which nothing else holds; available
            after `rows` or `weighted_sum`, or if they were computed in lockstep.
        metric: scales the gradients of the shared parameters; None for those of the losses themselves.
    """

    graph: LossGraph
    loss_weights: Sequence[float]
    factor: float = 1.0
    scaled: bool = False
    create_graph: bool = False
    retain_graph: bool = False
    unshared_gradients: list[Gradients] = field(default_factory=list, init=False)
    metric: OptimizerMetric | None = field(default=None, init=False)

    def at_stages(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the features before and after each `transform` stage, and the gradients w.r.t. them, for homogenizers.

        Both are `[tasks, batch, features]`; several feature tensors are concatenated. Empty if they are not computed.

        Raises:
            OptionError: feature tensors have different first dimensions.
        """
        return [], []

    @abstractmethod
    def differentiate(self) -> Iterator[Gradients]:
        """Yield the gradients of the shared parameters, one task after the other; computed when they are required."""

    def iterate_scaled(self) -> Iterator[Gradients]:
        """Yield the gradients of `differentiate`, scaled by the metric."""
        return self.differentiate() if self.metric is None else map(self.metric.scale_row, self.differentiate())

    def rows(self) -> TaskGradients:
        """Return one gradient per task and shared parameter."""
        rows = list(self.iterate_scaled())
        return {name: [row[index] for row in rows] for index, name in enumerate(self.graph.shared)}

    def rows_of(self, tensors: Mapping[str, Tensor]) -> TaskGradients:
        """Return one gradient per task and tensor; the graph is kept."""
        inputs, rows = list(tensors.values()), list[Gradients]()
        for task, loss in enumerate(self.graph.tasks.losses):
            found = self.gradients([loss], inputs, [self.output_grad(task)], last=False)
            rows.append(found if self.counts[task] else [None for _ in inputs])
        return {name: [row[index] for row in rows] for index, name in enumerate(tensors)}

    def head_gradients(self) -> list[tuple[int, Tensor, Tensor | None]]:
        """Return (slot of the task, leaf, gradient) for each leaf that is not shared; see `unshared_gradients`."""
        per_task = zip(self.graph.tasks.slots, self.graph.unshared_leaves, self.unshared_gradients, strict=True)
        return [
            (slot, leaf, gradient)
            for slot, leaves, gradients in per_task
            for leaf, gradient in zip(leaves, gradients, strict=True)
        ]

    def starts(self) -> list[Start] | None:
        """Return for each task where its pass begins; None if the rows cannot be computed in lockstep."""
        return None

    def one_pass(self) -> bool:
        """True if `weighted_sum` takes one backward pass."""
        return False

    def weighted_sum(self, weights: Tensor) -> Gradients | None:
        """Return Σ_i weights_i · row_i for each shared parameter; None if only rows give it (see `one_pass`)."""
        total = self.differentiate_sum(weights)
        return total if total is None or self.metric is None else self.metric.scale_row(total)

    def differentiate_sum(self, weights: Tensor) -> Gradients | None:
        """Return `weighted_sum` without the metric."""
        return None

    def gradients(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], output_grads: Sequence[Tensor], last: bool
    ) -> Gradients:
        """Return Σ over outputs of output_grad · ∂output/∂input; the last call frees the graph."""
        if not inputs or not outputs:
            return [None] * len(inputs)
        found = self.graph.passes.differentiate(
            outputs, inputs, output_grads, retain_graph=self.retain_graph or self.create_graph or not last,
            create_graph=self.create_graph,
        )  # fmt: skip
        if dist.is_available() and dist.is_initialized():
            check_not_gathered(inputs)
        return [
            # Most gradients are plain and dense; small steps have no time for a call for each of them.
            part
            if part is None or (type(part) is Tensor and part.layout == torch.strided)
            else plain_gradient(leaf, part)
            for leaf, part in zip(inputs, found, strict=True)
        ]

    def output_grad(self, task: int, share: float | Tensor = 1.0) -> Tensor:
        """Return the gradient w.r.t. a task's loss, at which a pass begins: its share of the factor and its weight."""
        scale = self.factor * self.loss_weights[task] * share
        return scale if isinstance(scale, Tensor) else torch.full_like(self.graph.tasks.losses[task], scale)

    def task_gradients(self, task: int, inputs: Sequence[Tensor], last: bool) -> tuple[Gradients, Gradients]:
        """Return the gradients of one task's loss w.r.t. some inputs and its leaves that are not shared.

        The last call frees the graph.
        """
        loss, leaves = self.graph.tasks.losses[task], [*inputs, *self.graph.unshared_leaves[task]]
        found = self.gradients([loss], leaves, [self.output_grad(task)], last)
        if not self.counts[task]:
            found = [None] * len(found)
        heads = found[len(inputs) :]
        del found[len(inputs) :]
        copy_shared_gradients(heads)
        return found, heads

    @functools.cached_property
    def counts(self) -> list[bool]:
        """False for a loss with a weight of 0 that is not finite, such as a mean over no labels: 0 · NaN is not 0."""
        pairs = zip(self.loss_weights, self.graph.tasks.losses, strict=True)
        return [weight != 0 or bool(loss.isfinite()) for weight, loss in pairs]


class DirectDerivatives(Derivatives):
    """Differentiates the losses w.r.t. all leaves in one pass."""

    def differentiate(self) -> Iterator[Gradients]:
        shared, tasks = list(self.graph.shared.values()), len(self.graph.tasks.losses)
        self.unshared_gradients = []
        for task in range(tasks):
            row, heads = self.task_gradients(task, shared, task == tasks - 1)
            self.unshared_gradients.append(heads)
            yield row

    def starts(self) -> list[Start]:
        return [([loss], [self.output_grad(task)]) for task, loss in enumerate(self.graph.tasks.losses)]

    def one_pass(self) -> bool:
        """False if two losses depend on one leaf that is not shared: its summed gradient cannot be split by task."""
        unshared = [leaf for leaves in self.graph.unshared_leaves for leaf in leaves]
        return len({id(leaf) for leaf in unshared}) == len(unshared)

    def differentiate_sum(self, weights: Tensor) -> Gradients | None:
        graph, shared = self.graph, list(self.graph.shared.values())
        factors: list[float] = weights.tolist()
        if not self.unshared_gradients and not self.one_pass():
            return None
        together = self._differentiate_small_heads(factors)
        active = [task for task, factor in enumerate(factors) if factor or weights.requires_grad]
        if not active:
            return [torch.zeros_like(parameter, requires_grad=False) for parameter in shared]
        shares = self._shares(weights)
        losses = [graph.tasks.losses[task] for task in active]
        output_grads = [self.output_grad(task, shares[task]) for task in active]
        heads = [task for task in active if together[task]]
        leaves = [leaf for task in heads for leaf in graph.unshared_leaves[task]]
        found = self.gradients(losses, [*shared, *leaves], output_grads, True)
        copy_shared_gradients(found)
        rest = iter(found[len(shared) :])
        for task in heads:
            divisor = None if factors[task] == 1 and not self.create_graph else shares[task]
            self.unshared_gradients[task] = [_divide(next(rest), divisor) for _ in graph.unshared_leaves[task]]
        return found[: len(shared)]

    def _shares(self, weights: Tensor) -> list[Any]:
        """Return the weights as numbers, or, if they have a graph, as tensors of the losses' dtype."""
        if not weights.requires_grad:
            return list(weights.tolist())
        return [weight.to(loss) for weight, loss in zip(weights, self.graph.tasks.losses, strict=True)]

    def _differentiate_small_heads(self, factors: Sequence[float]) -> list[bool]:
        """Differentiate heads by separate passes where necessary; return for each task if its head is left to do.

        The pass of a weighted sum returns a head's gradient multiplied by its task's weight, which is then divided out.
        If the weight is so small beside the others that digits would be lost, a separate pass differentiates the head.
        """
        if self.unshared_gradients:
            return [False] * len(factors)
        smallest = SMALLEST_SHARE * max(map(abs, factors))
        together = [abs(factor) > smallest for factor in factors]
        self.unshared_gradients = [
            [None] * len(leaves) if together[task] else self.task_gradients(task, (), False)[1]
            for task, leaves in enumerate(self.graph.unshared_leaves)
        ]
        return together


def _divide(gradient: Tensor | None, divisor: float | Tensor | None) -> Tensor | None:
    return gradient if gradient is None or divisor is None else gradient / divisor


@dataclass
class FeatureDerivatives(Derivatives):
    """Differentiates each loss w.r.t. the features in the constructor, and then the shared part for the rows or sums.

    Attributes:
        features: the outputs of the shared part.
        feature_grads: for each task the gradients of its loss w.r.t. the features.
        stage_feature_grads: for each task the gradients w.r.t. the tensors between features and head.
    """

    def __post_init__(self) -> None:
        self.features = self.graph.features
        self.feature_grads, self.stage_feature_grads = list[Gradients](), list[Gradients]()
        stage_features, tasks = self.graph.stage_features, len(self.graph.tasks.losses)
        for task in range(tasks):
            between = stage_features[task] if stage_features else ()
            found, heads = self.task_gradients(task, [*self.features, *between], task == tasks - 1 and not between)
            self.feature_grads.append(found[: len(self.features)])
            self.stage_feature_grads.append(found[len(self.features) :])
            self.unshared_gradients.append(heads)

    def at_stages(self) -> tuple[list[Tensor], list[Tensor]]:
        factor, stages = self.factor, self.graph.stage_features
        with torch.set_grad_enabled(self.create_graph):
            if stages:
                columns = list(zip(*stages, strict=True))
                grad_columns = zip(*self.stage_feature_grads, strict=True)
                return [torch.cat(column) for column in columns], [
                    torch.cat([without_factor(grad, like, factor) for grad, like in zip(grads, column, strict=True)])
                    for grads, column in zip(grad_columns, columns, strict=True)
                ]
            if len({feature.shape[0] for feature in self.features if feature.dim()}) != 1:
                raise OptionError(
                    "a homogenizer reads features, so all of them must have the same first dimension, the batch; got "
                    f"{', '.join(str(tuple(feature.shape)) for feature in self.features)}."
                )
            flat = [feature.flatten(1) if feature.dim() > 1 else feature[:, None] for feature in self.features]
            combined = flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)
            pairs = zip(self.feature_rows().values(), flat, strict=True)
            grads = torch.cat([rows.reshape(len(rows), *like.shape) for rows, like in pairs], dim=2)
            return [combined.expand(len(grads), *combined.shape)], [grads]

    def feature_rows(self) -> dict[str, Tensor]:
        """Return the rows ∂L_i/∂z, `[tasks, *shape]`, float32 or wider, named by the index of the feature tensor."""
        columns, factor = list(zip(*self.feature_grads, strict=True)), self.factor
        names = ["features"] if len(columns) == 1 else [f"features.{index}" for index in range(len(columns))]
        return {
            name: torch.stack([without_factor(grad, feature, factor) for grad in column])
            for name, column, feature in zip(names, columns, self.features, strict=True)
        }

    def differentiate(self) -> Iterator[Gradients]:
        tasks = len(self.feature_grads)
        for task, row in enumerate(self.feature_grads):
            yield self.backpropagate(row, task == tasks - 1)

    def starts(self) -> list[Start]:
        return [self._start(row) for row in self.feature_grads]

    def one_pass(self) -> bool:
        return True

    def differentiate_sum(self, weights: Tensor) -> Gradients:
        # Numbers of the CPU, which a GPU multiplies by without a copy that it would have to wait for.
        numbers = weights.tolist()
        factors: list[Any] = list(weights.unbind()) if weights.requires_grad else numbers
        # Zero times a gradient that is not finite would not be zero.
        active = [weights.requires_grad or number != 0 for number in numbers]
        total: Gradients = []
        for parts in zip(*self.feature_grads, strict=True):
            weighted = [
                factor * part if used else torch.zeros_like(part)
                for factor, part, used in zip(factors, parts, active, strict=True)
                if part is not None
            ]
            total.append(torch.stack(weighted).sum(0) if weighted else None)
        found = self.backpropagate(total)
        copy_shared_gradients(found)
        return found

    def backpropagate(self, feature_grads: Gradients, last: bool = True) -> Gradients:
        """Backpropagate one gradient w.r.t. the features to the shared parameters; the last call frees the graph."""
        features, grads = self._start(feature_grads)
        return self.gradients(features, list(self.graph.shared.values()), grads, last)

    def _start(self, feature_grads: Gradients) -> Start:
        pairs = [(x, grad) for x, grad in zip(self.features, feature_grads, strict=True) if grad is not None]
        return [x for x, _ in pairs], [grad for _, grad in pairs]


class FullyShardedDerivatives(Derivatives):
    """Calls `backward()` for each loss, because hooks of `fully_shard`, which average over ranks, run only there.

    So `.grad` of the shared parameters, and of heads that are not sharded, is the gradient of one task until the next
    pass; it is restored at the end. The gradients of other sharded parameters, such as those of heads, are added to
    their `.grad`, as by `sum(losses).backward()`; a pass of a weighted sum would write weighted gradients there.
    """

    def differentiate(self) -> Iterator[Gradients]:
        graph, shared = self.graph, list(self.graph.shared.values())
        leaves = {id(leaf): leaf for heads in (shared, *graph.unshared_leaves) for leaf in heads}.values()
        before = [leaf.grad for leaf in leaves]
        self.unshared_gradients = []
        try:
            for task, loss in enumerate(graph.tasks.losses):
                for leaf in leaves:
                    leaf.grad = None
                retain = self.retain_graph or task < len(graph.tasks.losses) - 1
                graph.passes.differentiate([loss], None, [self.output_grad(task)], retain_graph=retain)
                self.unshared_gradients.append([leaf.grad for leaf in graph.unshared_leaves[task]])
                yield [None if parameter.grad is None else local_part(parameter.grad) for parameter in shared]
        finally:
            for leaf, gradient in zip(leaves, before, strict=True):
                leaf.grad = gradient


@dataclass(kw_only=True)
class SummedDerivatives(Derivatives):
    """Sums of the gradients of several batches, computed before.

    Attributes:
        sums: for each task the sums of the gradients of the shared parameters.
        sums_at_stages: the result of `at_stages`.
    """

    sums: Sequence[Gradients]
    sums_at_stages: tuple[list[Tensor], list[Tensor]]

    def at_stages(self) -> tuple[list[Tensor], list[Tensor]]:
        return self.sums_at_stages

    def differentiate(self) -> Iterator[Gradients]:
        yield from self.sums


def without_factor(grad: Tensor | None, like: Tensor, factor: float) -> Tensor:
    """Divide a gradient w.r.t. features by the scaler's factor, in float32 or wider, as half precision underflows."""
    if grad is None:
        return torch.zeros_like(like, requires_grad=False, dtype=torch.promote_types(like.dtype, torch.float32))
    return grad.to(torch.promote_types(grad.dtype, torch.float32)) / factor
