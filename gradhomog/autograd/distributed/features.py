"""Features of a batch over ranks: rows w.r.t. them stay where they are; homogenizers that read features receive all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradhomog.autograd.apply import Options, feature_jacobian
from gradhomog.autograd.batch import Batch
from gradhomog.autograd.derivatives import FeatureDerivatives
from gradhomog.errors import NonfiniteError, OptionError
from gradhomog.ranks.collectives import Collectives
from gradhomog.ranks.exchange import sum_tensors
from gradhomog.ranks.local_columns import LocalColumns
from gradhomog.rows import DenseJacobian, Direction, Jacobian, all_finite


class FeatureRows:
    """The rows e_ri / Σ_s e_si ∂L_ri/∂z_r of `level="features"`, whose columns are the features of all ranks.

    The features of different ranks belong to different examples, so norms and Gramians are sums over the ranks. The
    direction is backpropagated on each rank, and the gradients of the parameters are summed.

    Args:
        totals: for each task that is present on at least one rank, by slot, the number of examples on all ranks.
        gather: send all rows to every rank, for homogenizers that read rows.

    Attributes:
        jacobian: the rows.
    """

    def __init__(
        self, batch: Batch, totals: Mapping[int, float], collectives: Collectives, gather: bool = False
    ) -> None:
        assert isinstance(batch.derivatives, FeatureDerivatives)  # by `through_features`
        self._derivatives, self._collectives = batch.derivatives, collectives
        index = {slot: row for row, slot in enumerate(batch.tasks.slots)}
        blocks = {
            name: torch.stack([
                rows[index[slot]] / total if slot in index else torch.zeros_like(rows[0])
                for slot, total in totals.items()
            ])
            for name, rows in feature_jacobian(batch.derivatives).materialize().items()
        }  # fmt: skip
        self._own: dict[str, slice] = {}  # of gathered rows the examples of this rank
        self.jacobian: Jacobian = LocalColumns(DenseJacobian(blocks), collectives)
        if gather:
            gathered = {name: _gather_batch(name, rows, collectives) for name, rows in blocks.items()}
            self._own = {name: own for name, (_, own) in gathered.items()}
            self.jacobian = DenseJacobian({name: whole for name, (whole, _) in gathered.items()})
        self._used: Tensor | None = None

    def used(self) -> Tensor:
        """For each rank and parameter, 1 if the features depend on it, `[ranks, parameters]`."""
        assert self._used is not None  # `to_parameters` was called before
        return self._used

    def to_parameters(self, direction: Direction) -> Direction:
        """Return the gradient of the parameters for a direction of the features, summed over the ranks.

        Raises:
            NonfiniteError: on all ranks.
            RankError: another rank raised an error in the backward pass.
        """
        derivatives, graph = self._derivatives, self._derivatives.graph
        found: dict[str, Tensor | None] = {}
        failure: Exception | None = None
        try:
            own = [part[self._own[name]] if name in self._own else part for name, part in direction.items()]
            pairs = zip(own, derivatives.features, strict=True)
            gradients = derivatives.backpropagate([(graph.factor * part).to(z.dtype) for part, z in pairs])
            found = dict(zip(graph.shared, gradients, strict=True))
        except Exception as error:  # raised after the sum, because the other ranks wait in it
            failure = error
        total = sum_tensors(found, graph.shared, self._collectives)
        self._used = self._collectives.settle(failure, [found.get(name) is not None for name in graph.shared])
        if not all_finite(total.values()):  # the same numbers on all ranks
            raise NonfiniteError(
                "the gradient of the shared parameters is not finite, although every task's gradient w.r.t. the "
                "features is. Lower the learning rate. Nothing was changed."
            )
        return {name: part / graph.factor for name, part in total.items()}


def gather_features(
    batch: Batch, options: Options, totals: Mapping[int, float], collectives: Collectives
) -> dict[str, Any]:
    """Return features, the gradients w.r.t. them, and targets of the whole batch, for `Pipeline.compute`.

    The gradients are those of the mean losses over the ranks.

    Raises:
        OptionError: on all ranks, a task is absent on some of them.

    Cost: each rank sends its features once, or once per task if they were transformed, and the gradients w.r.t. them.
    """
    absent = collectives.all_gather_numbers([float(batch.tasks.slots != tuple(totals))])
    if absent.any():
        raise OptionError(
            "a homogenizer reads features, so every rank must have a loss for every task; rank "
            f"{int(absent.argmax())} does not. Give every rank examples of all tasks, or use another homogenizer."
        )
    grads = [
        torch.stack([row / total for row, total in zip(stage, totals.values(), strict=True)])
        for stage in batch.feature_grads
    ]
    gathered: dict[str, Any] = {
        "features": [_gather_batch("features", stage, collectives)[0] for stage in batch.features],
        "feature_grads": [_gather_batch("features", stage, collectives)[0] for stage in grads],
    }
    if options.targets is not None:
        gathered["targets"] = _gather_batch("targets", options.targets, collectives)[0]
    return gathered


def _gather_batch(name: str, value: Tensor, collectives: Collectives) -> tuple[Tensor, slice]:
    """Concatenate tensors `[tasks, batch, *shape]` of all ranks, whose batches may differ in size.

    Returns the whole tensor, and the position of this rank's examples in it.

    Raises:
        OptionError: on all ranks, the tensors have no batch, or other dimensions differ.
    """
    value = value.detach()  # of the graph, as ranks exchange numbers
    shape = (value.dim(), *value.shape[2:], *[0] * 8)[:8]  # equally many numbers on every rank
    shapes = [tuple(map(int, numbers)) for numbers in collectives.all_gather_numbers(shape).tolist()]
    if value.dim() < 2 or len(set(shapes)) > 1:
        raise OptionError(
            f"{name!r} of all ranks are concatenated for a homogenizer that reads them, so they must have the shape "
            f"[batch, ...] and may differ in the batch only; on this rank they are {list(value.shape[1:])}. Pad them, "
            "or use another homogenizer."
        )
    same = value.stride(0) == 0  # one tensor that was expanded to all tasks
    one = (value[:1] if same else value).transpose(0, 1).contiguous()
    sizes = [int(size) for size in collectives.all_gather_numbers([len(one)])[:, 0].tolist()]
    start = sum(sizes[: collectives.rank])
    padded = one.new_zeros(max(sizes), *one.shape[1:])
    padded[: len(one)] = one
    parts = collectives.all_gather(padded).view(len(sizes), *padded.shape)
    whole = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)]).transpose(0, 1)
    return whole.expand(len(value), *whole.shape[1:]) if same else whole, slice(start, start + len(one))
