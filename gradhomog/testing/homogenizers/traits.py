"""Checks of the traits that a homogenizer claims of its direction: invariances, no conflict."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from gradhomog.testing.check import CheckFailure, NotApplicable, check
from gradhomog.testing.comparisons import require_close
from gradhomog.testing.homogenizers.directions import EPSILON, in_tensors, largest_norm, random_rows
from gradhomog.testing.homogenizers.subject import HomogenizerSubject
from gradhomog.testing.property_search import for_all
from gradhomog.testing.strategies import jacobians

# More parameters than tasks: otherwise several sets of weights may be optimal, and rounding selects one of them.
_FREE = jacobians(tasks=(2, 6), params=(7, 12), spread=3, zero=False, duplicate=False, opposite=False)


@check("homogenizers", claim="permutation_equivariant")
def permutation_equivariant(subject: HomogenizerSubject) -> None:
    """A permutation of the tasks (rows, losses, domains and features) does not change the direction.

    Checked in the second of two steps, because state by slot violates this: it belongs to the slot, not to the task.
    """

    @for_all(jacobian=_FREE, permutation=st.permutations(range(6)))
    def _(jacobian: Tensor, permutation: list[int]) -> None:
        order = torch.tensor([slot for slot in permutation if slot < len(jacobian)])
        pipe, other = subject.pipeline(), subject.pipeline()
        for each in (pipe, other):
            subject.combine(jacobian, pipe=each)
        expected = subject.vector(jacobian, pipe=pipe)
        found = subject.combine(jacobian[order], pipe=other, order=order)
        require_close(
            found, expected, f"rows in the order {order.tolist()}", rtol=1e-6, atol=1e-9 * largest_norm(jacobian)
        )


_EXPONENTS = st.integers(-59, 59) | st.sampled_from([-59, 59])  # the smallest epsilon has an effect only at the ends


@check("homogenizers", claim="scale_equivariant")
def scale_equivariant(subject: HomogenizerSubject) -> None:
    """Multiplying float32 rows by a factor from 1e-18 to 1e18 multiplies the direction by it, over three steps."""

    @for_all(jacobian=jacobians(tasks=(1, 5), params=(6, 12), spread=2, opposite=False), exponent=_EXPONENTS)
    def _(jacobian: Tensor, exponent: int) -> None:
        rows, factor = jacobian.float(), 2.0**exponent
        expected = subject.vector(rows, steps=3)
        found = subject.vector(rows * factor, steps=3)
        require_close(
            found / factor, expected, f"rows times 2^{exponent}", rtol=1e-4, atol=1e-4 * largest_norm(jacobian),
            cause=lambda: EPSILON if exponent < 0 else "",
        )  # fmt: skip


@check("homogenizers", claim="loss_scale_invariant")
def loss_scale_invariant(subject: HomogenizerSubject) -> None:
    """Multiplying all losses by a factor from 1e-12 to 1e12 does not change the direction, over three steps.

    Each step has other losses. Small factors reveal an absolute epsilon added to losses, large ones a threshold.
    """
    if "losses" not in subject.spec.needs:
        raise NotApplicable("it does not read losses")
    rows, losses = (
        random_rows(3, 8),
        torch.tensor([[0.5, 1.0, 2.0], [0.4, 1.1, 0.9], [0.6, 0.3, 0.8]], dtype=torch.float64),
    )

    def direction(factor: float) -> Tensor:
        pipe = subject.pipeline()
        return [subject.vector(rows, losses=factor * row, pipe=pipe) for row in losses][-1]

    expected = direction(1.0)
    for factor in (1e-12, 1e-6, 1e6, 1e12):
        what = f"the direction with losses times {factor:g}"
        require_close(
            direction(factor), expected, what, rtol=1e-6, atol=1e-9 * largest_norm(rows), losses=factor * losses
        )


@check("homogenizers", claim="rotation_equivariant")
def rotation_equivariant(subject: HomogenizerSubject) -> None:
    """A rotation of parameter space rotates the direction: it depends on inner products of rows, not on coordinates."""

    @for_all(jacobian=_FREE, seed=st.integers(0, 100))
    def _(jacobian: Tensor, seed: int) -> None:
        rotation = torch.linalg.qr(random_rows(jacobian.shape[1], jacobian.shape[1], seed))[0]
        expected = subject.vector(jacobian) @ rotation
        found = subject.combine(jacobian @ rotation)
        require_close(found, expected, "rotated rows", rtol=1e-6, atol=1e-8 * largest_norm(jacobian), rotation=rotation)


@check("homogenizers", claim="per_tensor")
def per_tensor(subject: HomogenizerSubject) -> None:
    """The direction in each tensor of parameters is that of the rows in this tensor alone, over two steps."""
    parts = in_tensors(random_rows(4, 18, seed=4))
    together = subject.combine(parts, steps=2)
    assert isinstance(together, dict)
    for name, rows in parts.items():
        alone = subject.combine({name: rows}, steps=2)
        assert isinstance(alone, dict)
        require_close(
            together[name], alone[name], f"the direction in the tensor `{name}`", rtol=1e-9, atol=1e-12, jacobian=rows
        )


# Largest conflict with nearly dependent rows, relative to ‖g_i‖ · mean_j ‖g_j‖. Weights that cancel in such rows lose
# up to the square root of rounding; narrow dtypes also round the direction.
_CONFLICTS = {torch.float64: 1e-7, torch.float32: 5e-4, torch.float16: 1e-3, torch.bfloat16: 4e-3}


@check("homogenizers", claim="non_conflicting")
def non_conflicting(subject: HomogenizerSubject) -> None:
    """The direction has no negative inner product with any row, up to rounding.

    Rows that are nearly opposite to another row, or to the sum of two, are passed in every floating dtype: weights from
    the inverse of their Gramian consist of rounding.
    """

    @for_all(jacobian=jacobians(), examples=80)
    def _(jacobian: Tensor) -> None:
        norms = jacobian.norm(dim=1)
        rounding = 1e-9 * norms * norms[norms > 0].min() if bool(norms.any()) else norms
        _require_no_conflict(jacobian, subject.vector(jacobian), rounding)

    @for_all(
        tasks=st.integers(3, 8), params=st.sampled_from([5, 40, 1000]), seed=st.integers(0, 1000),
        apart=st.sampled_from([0.0, 1e-6, 1e-4, 1e-2]), summed=st.integers(1, 2),
        dtype=st.sampled_from(list(_CONFLICTS)), examples=120,
    )  # fmt: skip
    def _(tasks: int, params: int, seed: int, apart: float, summed: int, dtype: torch.dtype) -> None:
        jacobian = random_rows(tasks, params, seed)
        jacobian[-1] = apart * jacobian[-1] - jacobian[:summed].sum(0)
        jacobian = jacobian.to(dtype)
        norms = jacobian.double().norm(dim=1)
        _require_no_conflict(jacobian, subject.vector(jacobian), _CONFLICTS[dtype] * norms * norms.mean())


def _require_no_conflict(jacobian: Tensor, direction: Tensor, rounding: Tensor) -> None:
    inner = jacobian.double() @ direction.double()
    if bool((inner < -rounding).any()):
        raise CheckFailure("the direction conflicts with a row", direction=direction, inner_products=inner)
