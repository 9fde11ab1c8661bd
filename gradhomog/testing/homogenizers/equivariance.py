"""What a change of the rows does to the direction: order, size, coordinates."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.comparing import agree
from gradhomog.testing.homogenizers.subject import HomogenizerSubject
from gradhomog.testing.searching import for_all
from gradhomog.testing.strategies import jacobians

# More parameters than tasks: with fewer, several sets of weights may be best, and rounding chooses among them.
_FREE = jacobians(tasks=(2, 6), params=(7, 12), spread=3, zero=False, duplicate=False, opposite=False)


def _size(rows: Tensor) -> float:
    return float(rows.norm(dim=1).max())


@check("homogenizers", claim="permutation_equivariant")
def permutation_equivariant(subject: HomogenizerSubject) -> None:
    """The order of the tasks does not matter: rows, losses, domains and features permuted give the same direction.

    In the second of two steps: what is held by slot follows the slot, not the task, and breaks this.
    """

    @for_all(jacobian=_FREE, places=st.permutations(range(6)))
    def _(jacobian: Tensor, places: list[int]) -> None:
        order = torch.tensor([place for place in places if place < len(jacobian)])
        pipe, other = subject.pipeline(), subject.pipeline()
        for made in (pipe, other):
            subject.combine(jacobian, pipe=made)
        plain = subject.combine(jacobian, pipe=pipe)
        assert isinstance(plain, Tensor)
        found = subject.combine(jacobian[order], pipe=other, order=order)
        agree(found, plain, f"rows in the order {order.tolist()}", rtol=1e-6, atol=1e-9 * _size(jacobian))


@check("homogenizers", claim="scale_equivariant")
def scale_equivariant(subject: HomogenizerSubject) -> None:
    """A common factor of float32 rows, from 1e-18 to 1e18, is the same factor of the direction, over three steps."""

    exponents = st.integers(-59, 59) | st.sampled_from([-59, 59])  # at the ends the smallest epsilon shows

    @for_all(jacobian=jacobians(tasks=(1, 5), params=(6, 12), spread=2, opposite=False), exponent=exponents)
    def _(jacobian: Tensor, exponent: int) -> None:
        rows, factor = jacobian.float(), 2.0**exponent
        plain = subject.combine(rows, steps=3)
        found = subject.combine(rows * factor, steps=3)
        assert isinstance(plain, Tensor)
        assert isinstance(found, Tensor)
        agree(found / factor, plain, f"rows times 2^{exponent}", rtol=1e-4, atol=1e-4 * _size(jacobian))


@check("homogenizers", claim="rotation_equivariant")
def rotation_equivariant(subject: HomogenizerSubject) -> None:
    """A rotation of parameter space rotates the direction: only inner products of rows count, not coordinates."""

    @for_all(jacobian=_FREE, seed=st.integers(0, 100))
    def _(jacobian: Tensor, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        square = torch.randn(jacobian.shape[1], jacobian.shape[1], generator=generator, dtype=torch.float64)
        rotation = torch.linalg.qr(square)[0]
        plain = subject.combine(jacobian)
        assert isinstance(plain, Tensor)
        found = subject.combine(jacobian @ rotation)
        agree(found, plain @ rotation, "rotated rows", rtol=1e-6, atol=1e-8 * _size(jacobian), rotation=rotation)


@check("homogenizers", claim="non_conflicting")
def non_conflicting(subject: HomogenizerSubject) -> None:
    """The direction has no negative inner product with any row, beyond rounding."""

    @for_all(jacobian=jacobians(), examples=80)
    def _(jacobian: Tensor) -> None:
        direction = subject.combine(jacobian)
        assert isinstance(direction, Tensor)
        inner, norms = jacobian @ direction, jacobian.norm(dim=1)
        rounding = 1e-9 * norms * norms[norms > 0].min() if bool(norms.any()) else norms
        if bool((inner < -rounding).any()):
            raise CheckFailure("the direction conflicts with a row", direction=direction, inner_products=inner)
