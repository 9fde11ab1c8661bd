"""The Gramian and the norms of rows, tensor by tensor."""

from __future__ import annotations

from torch import Tensor

from gradhomog.rows import products
from gradhomog.rows.structure import AnyRows, blocks, repeated
from gradhomog.rows.unformed import UnformedRows


def block_gramians(rows: AnyRows) -> tuple[tuple[str, ...], Tensor]:
    """The Gramian of each block, float64 `[blocks, tasks, tasks]`, and the blocks' names.

    Rows of float32 and narrower are multiplied in float32 and added up in float64. Blocks with a row whose squares
    leave float32's range (norms below about 1e-15·√size, or above 1e17) are multiplied in float64 instead, so the
    result is equivariant from 1e-18 to 1e18. Differentiable (in float64) where the rows need a gradient.

    Cost: one read of the rows, N²/2 · params multiply-adds.
    """
    if isinstance(rows, UnformedRows):
        return rows.block_gramians()
    named = blocks(rows)
    return tuple(named), products.of_blocks(list(named.values()), _read_once(products.gramian))


def block_squared_norms(rows: AnyRows) -> tuple[tuple[str, ...], Tensor]:
    """The squared norms of each block's rows, float64 `[blocks, tasks]`: what `block_gramians` has on its diagonals.

    Cost: one read of the rows, N · params multiply-adds.
    """
    if isinstance(rows, UnformedRows):
        return rows.block_squared_norms()
    named = blocks(rows)
    return tuple(named), products.of_blocks(list(named.values()), _read_once(products.squared_norms))


def _read_once(product: products.Product) -> products.Product:
    """The same product, for which rows that are one in memory are read as that one."""

    def read(block: Tensor, exact: bool = False) -> Tensor:
        if not repeated(block):
            return product(block, exact)
        one = product(block[:1], exact)
        return one.expand([block.shape[0]] * one.dim())

    return read
