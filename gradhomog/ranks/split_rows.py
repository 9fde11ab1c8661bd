"""Rows whose columns are split over ranks: each rank stores some columns of all rows, and statistics are summed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

from torch import Tensor

from gradhomog.ranks.column_split import ColumnSplit
from gradhomog.ranks.communicator import GroupCommunicator
from gradhomog.ranks.dtensors import local_part
from gradhomog.rows import DenseRows, Direction, StoredRows, all_finite
from gradhomog.rows.arithmetic import Product


def _identity(value: Any) -> Any:
    return value


@final
@dataclass(eq=False)
class SplitRows(StoredRows):
    """N rows, of which each rank stores some columns; norms, Gramians and the check for finite rows are summed.

    Every method must be called on all ranks in the same order, because most exchange something: total norms and
    Gramians N or N² numbers, and as many for each parameter if they are not summed.

    Attributes:
        columns: the columns of this rank, in some blocks.
        like: a tensor `[*shape]` for each parameter name.
        communicator: the ranks over which statistics are summed.
        replicas: the number of ranks that store the same columns.
        to_direction, to_row: return a direction or a row from the part of it that this rank has computed.
        by_name: returns the columns with one block for each parameter.
        whole: True if `to_direction` returns the same tensors on all ranks.
    """

    columns: StoredRows
    like: Mapping[str, Tensor]
    communicator: GroupCommunicator
    replicas: int = 1
    to_direction: Callable[[Direction], Direction] = _identity
    to_row: Callable[[Direction], Direction] = _identity
    by_name: Callable[[StoredRows], StoredRows] = _identity
    whole: bool = False

    def __post_init__(self) -> None:
        self.tasks, self.requires_grad = self.columns.tasks, False

    def row(self, task: int) -> Direction:
        return self.to_row(self.columns.row(task))

    def select(self, tasks: Sequence[int]) -> SplitRows:
        return replace(self, columns=self.columns.select(tasks))

    def select_parameters(self, names: Sequence[str]) -> SplitRows:
        """Return the blocks of some parameters; of exchanged rows one of the groups. Nothing is sent."""
        columns = self.columns.select_parameters([name for name in self.columns.like if name in names])
        return replace(self, columns=columns, like={name: self.like[name] for name in names})

    def detach(self) -> SplitRows:
        return self

    def finite_tasks(self) -> list[bool]:
        nonfinite = [float(not finite) for finite in self.columns.finite_tasks()]
        return [count == 0 for count in self.communicator.all_gather_numbers(nonfinite).sum(0).tolist()]

    def products(self, product: Product, by_block: bool) -> Tensor:
        columns = self.by_name(self.columns) if by_block else self.columns
        return self.communicator.sum_on_cpu(columns.products(product, by_block) / self.replicas)

    def weighted_sum(self, weights: Tensor, divisor: float = 1) -> Direction:
        return self.to_direction(self.columns.weighted_sum(weights.detach(), divisor))

    def all_finite(self, tensors: Iterable[Tensor]) -> bool:
        finite = all_finite(map(local_part, tensors))
        return finite if self.whole else bool(self.communicator.all_gather_numbers([float(finite)]).all())


def exchanged_rows(columns: Mapping[str, Tensor], split: ColumnSplit, communicator: GroupCommunicator) -> SplitRows:
    """Return rows that were exchanged: each of K ranks received one range of columns; directions are gathered.

    `weighted_sum` exchanges one row, `materialize` all rows.

    Args:
        columns: for each of `split.ranges`, by its first name, the columns of this rank, `[tasks, width]`.
    """
    gather = partial(split.gather, communicator=communicator)
    return SplitRows(
        DenseRows(columns), split.like, communicator,
        to_direction=gather, to_row=gather, by_name=split.by_name, whole=True,
    )  # fmt: skip


def sharded_rows(
    columns: StoredRows, parameters: Mapping[str, Tensor], replicas: int, communicator: GroupCommunicator
) -> SplitRows:
    """Return rows of DTensor parameters, of which the hooks of `fully_shard` (FSDP2) give each rank its part.

    A direction is returned as DTensors, of which each rank keeps its part; `materialize` and `row` send all or one of
    the rows to every rank.

    Args:
        columns: the parts of this rank, by parameter name.
        parameters: the DTensors.
        replicas: the number of ranks that store the same elements.
    """
    scalars = {name: local_part(one).new_empty((), requires_grad=False) for name, one in parameters.items()}
    like = {name: one.expand(parameters[name].shape) for name, one in scalars.items()}  # without memory

    def to_direction(parts: Direction) -> Direction:
        """Return DTensors with the placements of the parameters, from the parts of this rank; nothing is sent."""
        from torch.distributed.tensor import DTensor

        found: Direction = {}
        for name, part in parts.items():
            one: Any = parameters[name]
            found[name] = DTensor.from_local(
                part, one.device_mesh, one.placements, run_check=False, shape=one.shape, stride=one.stride()
            )
        return found

    def to_row(parts: Direction) -> Direction:
        tensors: dict[str, Any] = {**to_direction(parts)}
        return {name: tensor.full_tensor() for name, tensor in tensors.items()}

    return SplitRows(columns, like, communicator, replicas, to_direction, to_row)
