"""The Jacobian of a step: one gradient per task, with its Gramian, norms and weighted means."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from gradhomog.errors import DataError, OptionError
from gradhomog.rows import arithmetic
from gradhomog.rows.storage import DenseRows, Direction, PerTaskRows, Rows, StoredRows


@final
class Jacobian:
    """One gradient per task: row i is ∂L_i/∂θ, split into blocks by parameter name.

    The rows are C·J: J is stored, perhaps in another form than one tensor per parameter, and a mixing C is applied only
    to what is read. The Gramian is C·G·Cᵀ, and the mean a weighted mean of J. Statistics are computed once. They have a
    graph if and only if the rows have one, even if gradients are disabled at the first access. Do not modify returned
    tensors in place.

    Args:
        rows: J.
        mixing: C, float64 on the CPU: weights `[tasks]` (a diagonal C) or a matrix `[tasks, rows]`; None for J itself.
        source: the Jacobian of J without a mixing, which has its statistics; required with `mixing`.

    Raises:
        OptionError: the rows are complex, or have less than 16 bits.

    Attributes:
        tasks: N, the number of rows.
        names: the names of the blocks, in order; `("",)` for a Jacobian from one tensor.
        device, dtype, requires_grad: those of the rows; dtype is the narrowest among the blocks. Norms, Gramians and
            mixing matrices are on the CPU.
        rows, mixing, source: as above.
    """

    names: tuple[str, ...]
    device: torch.device
    dtype: torch.dtype
    _repeats_new_row = False  # the mean is then this row, without a copy

    def __init__(self, rows: Rows, mixing: Tensor | None = None, source: Jacobian | None = None) -> None:
        self.rows, self.mixing, self.source = rows, mixing, source
        self.tasks, self.requires_grad = rows.tasks, rows.requires_grad
        if source is not None and mixing is not None:
            self.names, self.device, self.dtype = source.names, source.device, source.dtype
            self.tasks, self.requires_grad = len(mixing), rows.requires_grad or mixing.requires_grad
            return
        first = next(iter(rows.like.values()))
        self.names, self.device, self.dtype = tuple(rows.like), first.device, first.dtype
        check_real(rows.like)
        for value in rows.like.values():
            if value.dtype.itemsize < self.dtype.itemsize:
                self.dtype = value.dtype

    # -- rows and directions -----------------------------------------------------------------------------------------

    def weights(self) -> Tensor:
        """Return the weight of each row of J in N times the mean: the column sums of C, `[rows]`."""
        if self.mixing is None:
            return torch.ones(self.tasks, dtype=torch.float64)
        if self.mixing.dim() == 1:
            return self.mixing
        return self.mixing.sum(0) if self.mixing.requires_grad else torch.from_numpy(self.mixing.numpy().sum(0))

    def weighted_mean(self, weights: Tensor) -> Direction:
        """Return `1/N Σ_i weights_i · row_i` for weights `[tasks]`, in the rows' dtype. Cost: one read of the rows."""
        weights = weights.to("cpu", torch.float64)
        if self.mixing is not None:
            weights = weights * self.mixing if self.mixing.dim() == 1 else torch.mv(self.mixing.T, weights)
        return self.rows.weighted_sum(weights, self.tasks)

    def mean(self) -> Direction:
        """Return the mean of the rows."""
        if self._repeats_new_row:
            return self.rows.stored().row(0)
        weights = torch.ones(self.tasks, dtype=torch.float64) if self.mixing is None else self.weights()
        return self.rows.weighted_sum(weights, self.tasks)

    def by_parameter(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each name with its rows `[tasks, *shape]`; do not modify them in place.

        Rows in separate tensors are copied parameter by parameter, so that the memory of a copy is free for the next.
        """
        mixing = None if self.mixing is None else arithmetic.to_device(self.mixing, self.device)
        for name, block in self.rows.stored().by_parameter():
            if mixing is None:
                yield name, block
            elif mixing.dim() == 2:
                yield name, DenseRows({name: block}).weighted_sum(mixing)[name]
            else:  # row by row: NaN in one row does not spread to others
                scaled = mixing.to(block.dtype if block.dtype.itemsize >= 4 else torch.float32)
                yield name, (scaled.view(-1, *[1] * (block.dim() - 1)) * block).to(block.dtype)

    def materialize(self) -> dict[str, Tensor]:
        """Return the rows as tensors `[tasks, *shape]` by name; do not modify them in place."""
        return dict(self.by_parameter())

    def row(self, task: int) -> Direction:
        """Return one row, without a copy if the rows are stored; do not modify it in place."""
        return self._stored().row(task)

    def row_like(self) -> Mapping[str, Tensor]:
        """Return tensors `[*shape]` by name with shape, dtype and device of one row, and arbitrary values."""
        return self.rows.row_like()

    def finite_tasks(self) -> list[bool]:
        """For each row, True if it contains neither NaN nor infinity. Cost: one read of the rows."""
        return self.rows.finite_tasks() if self.mixing is None else self._stored().finite_tasks()

    def _stored(self) -> StoredRows:
        return self.rows.stored() if self.mixing is None else DenseRows(self.materialize())

    # -- new Jacobians -----------------------------------------------------------------------------------------------

    def select(self, tasks: Sequence[int]) -> Jacobian:
        """Return the rows of some tasks."""
        return Jacobian(self._stored().select(tasks))

    def select_parameters(self, names: Sequence[str]) -> Jacobian:
        """Return the blocks of some parameters."""
        return Jacobian(self._stored().select_parameters(names))

    def detach(self) -> Jacobian:
        """Return the same rows, detached from the graph."""
        if not self.requires_grad:
            return self
        # Lazy rows are not computed here: their graph may be freed.
        reads_graph = self.rows.requires_grad and self.rows.computed
        plain = Jacobian(self.rows.stored().detach() if reads_graph else self.rows)
        return plain if self.mixing is None else Jacobian(plain.rows, self.mixing.detach(), plain)

    def mix(self, mixing: Tensor) -> Jacobian:
        """Return C·J for a matrix `[tasks, tasks]`, or rows times weights `[tasks]`, lazily: no row is computed yet."""
        tasks = self.tasks
        if mixing.shape not in ((tasks,), (tasks, tasks)):
            raise DataError(f"`mixing` must have shape [{tasks}] or [{tasks}, {tasks}]; got {tuple(mixing.shape)}.")
        later, earlier = mixing.to("cpu", torch.float64), self.mixing
        if earlier is None:
            return Jacobian(self.rows, later, self)
        if later.dim() == 2 and earlier.dim() == 2:
            return Jacobian(self.rows, later @ earlier, self.source)
        rows_of_later = later[:, None] if later.dim() < earlier.dim() else later
        return Jacobian(self.rows, rows_of_later * earlier, self.source)

    def map(self, function: Callable[[Tensor], Tensor]) -> Jacobian:
        """Apply a function to each block `[tasks, *shape]`; it must return a block of the same shape."""
        return Jacobian(DenseRows({name: function(value) for name, value in self.by_parameter()}))

    def replace(self, blocks: Mapping[str, Tensor]) -> Jacobian:
        """Return a Jacobian of the rows `blocks`, `[tasks, *shape]`, with the names and order of this one."""
        return Jacobian(DenseRows({name: blocks[name] for name in self.names}))

    def repeat(self, direction: Mapping[str, Tensor]) -> Jacobian:
        """Return N rows equal to `direction`, a new tensor `[*shape]` for each name; only one row is stored."""
        one = Jacobian(DenseRows({name: direction[name][None] for name in self.names}))
        found = Jacobian(one.rows, torch.ones(self.tasks, 1, dtype=torch.float64), one)
        found._repeats_new_row = True
        return found

    # -- statistics --------------------------------------------------------------------------------------------------

    @functools.cached_property
    def block_gramians(self) -> Tensor:
        """The Gramian of each block, float64 `[blocks, tasks, tasks]`."""
        return self._statistic(arithmetic.gramian, by_block=True)

    @functools.cached_property
    def total_gramian(self) -> Tensor:
        """The Gramian over all blocks, float64 `[tasks, tasks]`."""
        return self._statistic(arithmetic.gramian, by_block=False)

    @functools.cached_property
    def exact_gramian(self) -> Tensor:
        """`total_gramian` computed in float64, except for rows that are not in memory; costs 2 to 4 times as much."""
        return self._statistic(arithmetic.exact_gramian, by_block=False)

    @functools.cached_property
    def block_squared_norms(self) -> Tensor:
        """The squared norms in each block, float64 `[blocks, tasks]`; from the Gramians if they are cached."""
        return self._statistic(arithmetic.squared_norms, by_block=True)

    @functools.cached_property
    def total_squared_norms(self) -> Tensor:
        """The squared norms over all blocks, float64 `[tasks]`; from the Gramian if it is cached."""
        return self._statistic(arithmetic.squared_norms, by_block=False)

    def gramian(self, parameters: str = "*") -> Tensor:
        """Return the inner products of the rows, G_ij = ⟨row_i, row_j⟩, float64 `[tasks, tasks]`.

        Args:
            parameters: a glob pattern; the inner product is over the blocks whose name matches.

        Rows of float32 and narrower are multiplied in float32 and added up in float64; if squares exceed the range of
        float32, they are multiplied in float64. Equivariant under a common factor of the rows from 1e-18 to 1e18.
        Differentiable. The result is on the CPU for rows on any device: it is N² numbers, and reading one of them there
        would take as long as copying all.

        Raises:
            OptionError: the pattern matches no block.

        Cost: one read of the rows, N²/2 · params multiplications, at the first call; then none.
        """
        return self.total_gramian if parameters == "*" else self.block_gramians[self._matching(parameters)].sum(0)

    def squared_norms(self, parameters: str = "*") -> Tensor:
        """Return the squared Euclidean norms of the rows, float64 `[tasks]`; arguments and errors as in `gramian`."""
        if parameters == "*":
            return self.total_squared_norms
        return self.block_squared_norms[self._matching(parameters)].sum(0)

    def norms(self, parameters: str = "*") -> Tensor:
        """Return the Euclidean norms of the rows, float64 `[tasks]`; the derivative at a zero row is zero."""
        return arithmetic.safe_sqrt(self.squared_norms(parameters))

    def _statistic(self, product: arithmetic.Product, by_block: bool) -> Tensor:
        squares, mixing, source = product is arithmetic.squared_norms, self.mixing, self.source
        with torch.set_grad_enabled(self.requires_grad):
            if squares and ("block_gramians" if by_block else "total_gramian") in self.__dict__:
                found = self.block_gramians if by_block else self.total_gramian
            elif mixing is None or source is None:
                return self.rows.products(product, by_block)
            elif squares and mixing.dim() == 1:  # norms are enough
                return (source.block_squared_norms if by_block else source.total_squared_norms) * mixing.square()
            else:
                total = source.exact_gramian if product is arithmetic.exact_gramian else source.total_gramian
                inner = source.block_gramians if by_block else total
                found = mixing[:, None] * inner * mixing if mixing.dim() == 1 else mixing @ inner @ mixing.T
            return found.diagonal(dim1=-2, dim2=-1).clamp_min(0) if squares else found

    def _matching(self, parameters: str) -> list[int]:
        matching = [index for index, name in enumerate(self.names) if fnmatch.fnmatchcase(name, parameters)]
        if not matching:
            some = ", ".join(self.names[:6]) + (", …" if len(self.names) > 6 else "")
            raise OptionError(
                f"`parameters` must match the name of at least one tensor of the Jacobian; {parameters!r} matches none "
                f"of: {some or 'one unnamed tensor'}."
            )
        return matching


REAL_FORM = (
    "Train the real form of a complex parameter, nn.Parameter(torch.view_as_real(w)), and use torch.view_as_complex in "
    "the forward pass."
)


def check_real(parameters: Mapping[str, Tensor]) -> None:
    """Raise unless parameters are such that their gradients have inner products.

    Raises:
        OptionError: a parameter is complex, or has less than 16 bits.
    """
    for name, value in parameters.items():
        if value.is_complex() or value.dtype.itemsize < 2:
            advice = REAL_FORM if value.is_complex() else "Pass the master weights of a float8 layer."
            expected = "shared parameters must be real, of 16 bits or more"
            raise OptionError(f"{expected}; {name!r} is {value.dtype}. {advice}")


def as_jacobian(rows: Tensor | Mapping[str, Tensor] | Jacobian) -> Jacobian:
    """Create a Jacobian from task gradients: a tensor `[tasks, params]` or a dict of tensors `[tasks, *shape]` by name.

    Args:
        rows: real floating-point tensors, dense and in memory; they are not copied. A Jacobian is returned unchanged.

    Raises:
        DataError: the shape, structure, dtype or layout is invalid, or there is no task.

    >>> as_jacobian(torch.tensor([[3.0, 4.0], [1.0, 0.0]])).gramian()
    tensor([[25.,  3.],
            [ 3.,  1.]], dtype=torch.float64)
    """
    if isinstance(rows, Jacobian):
        return rows
    if isinstance(rows, Tensor):
        if rows.dim() != 2 or rows.shape[0] == 0:
            raise DataError(
                f"`jacobian` must have shape [tasks, params] with at least one task; got {tuple(rows.shape)}. "
                "Stack the task gradients first: torch.stack(gradients)."
            )
        rows = {"": rows}
    elif not isinstance(rows, Mapping):
        raise DataError(
            f"`jacobian` must be a tensor [tasks, params] or a dict of tensors [tasks, *shape]; "
            f"got {type(rows).__name__}."
        )
    device, counts = None, dict[str, int]()
    for name, value in rows.items():
        device = device or getattr(value, "device", None)
        fits = isinstance(value, Tensor) and value.is_floating_point() and value.dtype.itemsize >= 2
        if not fits or value.layout != torch.strided or value.is_meta or value.device != device:
            raise _invalid_block(name, value, device)
        counts[name] = value.shape[0] if value.dim() else 0
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise DataError(f"every tensor of `jacobian` must have the same tasks as first dimension; got sizes {counts}.")
    return Jacobian(DenseRows(rows))


def _invalid_block(name: str, value: object, device: torch.device | None) -> DataError:
    where = f" for `{name}`" if name else ""
    if not isinstance(value, Tensor):
        found, advice = f"contain tensors; got {type(value).__name__}", "Use zeros for a parameter that a "
        advice += "loss does not depend on."
    elif not value.is_floating_point() or value.dtype.itemsize < 2:  # PyTorch does not compute with float8
        found = f"have a real floating-point dtype of 16 bits or more; got {value.dtype}"
        advice = REAL_FORM if value.is_complex() else "Convert the rows, for example by .to(torch.bfloat16)."
    elif value.layout != torch.strided or value.is_meta:
        kind = "a tensor on the device meta" if value.is_meta else f"layout {value.layout}"
        found, advice = f"be dense and in memory; got {kind}", "Use to_dense() or real data."
    else:
        return DataError(f"all tensors of `jacobian` must be on one device; got {device} and {value.device}{where}.")
    return DataError(f"`jacobian` must {found}{where}. {advice}")


def jacobian_of_rows(rows: Sequence[Mapping[str, Tensor]]) -> Jacobian:
    """Return the Jacobian of rows in separate tensors `[*shape]` by name, without a copy; all rows have equal shapes.

    >>> jacobian_of_rows([{"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([1.0, 0.0])}]).gramian()
    tensor([[25.,  3.],
            [ 3.,  1.]], dtype=torch.float64)
    """
    return Jacobian(PerTaskRows({name: [row[name] for row in rows] for name in rows[0]}, rows[0]))
