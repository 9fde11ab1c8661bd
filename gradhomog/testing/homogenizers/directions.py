"""Checks of the direction: shape, dtype, finite values, identical tasks, and the claimed invariances."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.learners.learner import Learner
from gradhomog.learners.tasks import TaskBatch
from gradhomog.registry.options import option_parameters
from gradhomog.testing import small_network
from gradhomog.testing.assertions import require_close
from gradhomog.testing.check_results import CheckFailure, NotApplicable, check, full_or_fast
from gradhomog.testing.property_search import for_all, values_of
from gradhomog.testing.small_network import network
from gradhomog.testing.strategies import jacobians
from gradhomog.testing.subjects import HomogenizerSubject

EPSILON = (
    "an absolute epsilon or threshold, which is negligible for long rows only; make it relative to the norms of the "
    "rows, or choose by torch.where for rows of norm zero"
)


def random_rows(tasks: int, params: int, seed: int = 0) -> Tensor:
    return torch.randn(tasks, params, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def largest_norm(rows: Tensor) -> float:
    return float(rows.norm(dim=1).max())


@check("homogenizers")
def finite_for_finite_rows(subject: HomogenizerSubject) -> None:
    """Every finite matrix of rows has a finite direction of matching shape and dtype, over two steps.

    Includes zero, duplicate and opposite rows, a single task, and norms that differ by six orders of magnitude, in
    float64 and float32.
    """

    @for_all(jacobian=jacobians(), dtype=st.sampled_from([torch.float64, torch.float32]))
    def _(jacobian: Tensor, dtype: torch.dtype) -> None:
        direction = subject.combine(jacobian.to(dtype), steps=2)
        if not isinstance(direction, Tensor) or direction.shape != jacobian.shape[1:] or direction.dtype != dtype:
            description = f"{tuple(direction.shape)} {direction.dtype}" if isinstance(direction, Tensor) else direction
            raise CheckFailure(f"the direction is {description}; expected {tuple(jacobian.shape[1:])} {dtype}")
        if not bool(torch.isfinite(direction).all()):
            raise CheckFailure("the direction is not finite", direction=direction)


@check("homogenizers")
def half_precision(subject: HomogenizerSubject) -> None:
    """Rows in float16 and bfloat16 give the direction of the same rows in float64, up to their precision.

    Entries have a size of about 1 and of about 100. Sums of squares of the latter overflow in float16.
    """
    for dtype, size in itertools.product((torch.float16, torch.bfloat16), (1.0, 100.0)):
        rows = (size * random_rows(4, 33, seed=1)).to(dtype)
        expected = subject.combine(rows.double()).to(dtype)
        what = f"{dtype}, entries of about {size:g}"
        require_close(subject.combine(rows), expected, what, rtol=1e-2, atol=1e-2 * size)


def in_tensors(rows: Tensor) -> dict[str, Tensor]:
    """Divide rows `[tasks, 18]` into three tensors."""
    return {"weight": rows[:, :12].reshape(len(rows), 3, 4), "scalar": rows[:, 12], "bias": rows[:, 13:]}


@check("homogenizers")
def dict_rows(subject: HomogenizerSubject) -> None:
    """Rows as a dict of tensors `[tasks, *shape]` give the direction of the same rows as one matrix.

    For a homogenizer that claims `per_tensor`, only names and shapes are compared.
    """
    rows = random_rows(4, 18, seed=2)
    parts = in_tensors(rows)
    direction = subject.combine(parts, steps=2)
    shapes = {name: value.shape[1:] for name, value in parts.items()}
    if not isinstance(direction, dict) or {name: value.shape for name, value in direction.items()} != shapes:
        raise CheckFailure(
            f"the direction of a dict of rows must be a dict of the same names and shapes; got {direction}"
        )
    if "per_tensor" in subject.claims:
        return
    found = torch.cat([direction[name].reshape(-1) for name in parts])
    require_close(found, subject.combine(rows, steps=2), "a dict of rows", rtol=1e-9, atol=1e-12, jacobian=rows)


@check("homogenizers")
def devices(subject: HomogenizerSubject) -> None:
    """On an accelerator, the direction is on this device and close to the direction on the CPU."""
    if not torch.accelerator.is_available():
        raise NotApplicable("this machine has no device other than the CPU")
    device, rows = torch.accelerator.current_accelerator(), random_rows(4, 33, seed=3).float()
    found = subject.combine(rows.to(device), steps=2)
    if not isinstance(found, Tensor) or device is None or found.device.type != device.type:
        raise CheckFailure(f"the direction of rows on {device} is not on {device}")
    require_close(found.cpu(), subject.combine(rows, steps=2), str(device), rtol=1e-4, atol=1e-5)


@check("homogenizers")
def options_work(subject: HomogenizerSubject) -> None:
    """Every value that an option's annotation allows gives a finite direction.

    Numbers, booleans and choices are drawn, for one option at a time; numbers from 0.001 to 1000, integers up to 20.
    For invalid combinations an `OptionError` that names an option is allowed.
    """
    options = option_parameters(subject.spec).items()
    sampled = {name: strategy for name, one in options if (strategy := values_of(one.annotation)) is not None}
    if not sampled:
        raise NotApplicable("no option is a number, a boolean or a choice")
    rows = random_rows(3, 7)

    @for_all(option=st.sampled_from(sorted(sampled)).flatmap(lambda name: st.tuples(st.just(name), sampled[name])))
    def _(option: tuple[str, Any]) -> None:
        name, value = option
        try:
            direction = subject.combine(rows, pipe=subject.pipeline(**{name: value}), steps=2)
        except OptionError as error:
            if not any(other in str(error) for other in option_parameters(subject.spec)):
                raise CheckFailure(f"the error for option `{name}`={value!r} names no option: {error}") from error
            return
        except Exception as error:
            raise CheckFailure(
                f"option `{name}`={value!r} is allowed by its annotation, but raises {type(error).__name__}: {error}"
            ) from error
        if not bool(direction.isfinite().all()):
            raise CheckFailure(
                f"option `{name}`={value!r} is allowed by its annotation, but the direction is not finite"
            )


# -- identical tasks -------------------------------------------------------------------------------------------------


@check("homogenizers")
def identical_rows(subject: HomogenizerSubject) -> None:
    """N identical rows give that row as direction, over two steps, for N from 1 to 6: all methods have one scale."""

    @for_all(jacobian=jacobians(tasks=1, params=(1, 9)), tasks=st.integers(1, 6))
    def _(jacobian: Tensor, tasks: int) -> None:
        rows = jacobian.repeat(tasks, 1)
        direction, size = subject.combine(rows, steps=2), float(jacobian.abs().max())

        def cause() -> str:
            factor = float(torch.nan_to_num(direction / jacobian[0]).abs().max())
            longer = 2.0**40 * rows
            if torch.allclose(subject.combine(longer, steps=2), longer[0], rtol=1e-9):
                return EPSILON
            if torch.allclose(direction, factor * jacobian[0], rtol=1e-6, atol=1e-9 * size):
                return f"the weights sum to {tasks * factor:.4g} instead of {tasks}, the number of tasks"
            return ""

        require_close(direction, jacobian[0], f"{tasks} identical rows", rtol=1e-9, atol=1e-12 * size, cause=cause)


@check("homogenizers")
def zero_rows_give_zero_direction(subject: HomogenizerSubject) -> None:
    """If all rows are zero, the direction is exactly zero."""
    for tasks in (1, 3):
        direction = subject.combine(torch.zeros(tasks, 4), steps=2)
        if not isinstance(direction, Tensor) or bool((direction != 0).any()):
            raise CheckFailure(
                "zero rows give a direction that is not zero", jacobian=torch.zeros(tasks, 4), direction=direction
            )


@check("homogenizers")
def identical_tasks(subject: HomogenizerSubject) -> None:
    """On N identical tasks, three meta-steps of the installed learners equal those of the plain learner.

    Features must be transformed only if tasks differ. A homogenizer that attaches hooks to the encoder is compared only
    while its rows of identical tasks equal the plain learner's: dropout of activations, for example, always changes
    them. For a homogenizer that claims `momentum`, only the first step is compared.
    """
    compared = 0
    steps = 1 if "momentum" in subject.claims else 3
    learners = subject.learners()
    for learner in learners[: full_or_fast(len(learners), 2)]:
        plain, homogenized = (learner.make_for(*network(), pipe) for pipe in (None, subject.pipeline()))
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (plain, homogenized)]
        for step in range(steps):
            batch = TaskBatch.stack([small_network.task(step, f"domain {index}") for index in range(3)])
            if subject.attaches and not _rows_are_close(plain, homogenized, batch):
                break
            for one, optimizer in zip((plain, homogenized), optimizers, strict=True):
                one.step(batch, optimizer)
            for parameter, value in plain.named_parameters().items():
                found = homogenized.named_parameters()[parameter].detach()
                what = f"`{parameter}` of {learner.name} after {step + 1} steps on identical tasks"
                require_close(found, value.detach(), what, rtol=1e-7, atol=1e-10)
            compared += 1
    if not compared:
        raise NotApplicable(
            "even for identical tasks its rows differ from the rows of the plain learner, so steps cannot be compared"
        )


def _rows_are_close(plain: Learner, homogenized: Learner, batch: TaskBatch) -> bool:
    state = homogenized.homogenizers.state_dict()
    expected, found = plain.rows(batch).jacobian, homogenized.rows(batch).jacobian
    homogenized.homogenizers.load_state_dict(state)
    return all(torch.allclose(found[name], expected[name], rtol=1e-9, atol=1e-12) for name in expected)


# -- claimed traits --------------------------------------------------------------------------------------------------

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
        expected = subject.combine(jacobian, pipe=pipe)
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
        expected = subject.combine(rows, steps=3)
        found = subject.combine(rows * factor, steps=3)
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
    rows = random_rows(3, 8)
    losses = torch.tensor([[0.5, 1.0, 2.0], [0.4, 1.1, 0.9], [0.6, 0.3, 0.8]], dtype=torch.float64)

    def direction(factor: float) -> Any:
        pipe = subject.pipeline()
        return [subject.combine(rows, losses=factor * row, pipe=pipe) for row in losses][-1]

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
        expected = subject.combine(jacobian) @ rotation
        found = subject.combine(jacobian @ rotation)
        require_close(found, expected, "rotated rows", rtol=1e-6, atol=1e-8 * largest_norm(jacobian), rotation=rotation)


@check("homogenizers", claim="per_tensor")
def per_tensor(subject: HomogenizerSubject) -> None:
    """The direction in each tensor of parameters is that of the rows in this tensor alone, over two steps."""
    parts = in_tensors(random_rows(4, 18, seed=4))
    together = subject.combine(parts, steps=2)
    for name, rows in parts.items():
        alone = subject.combine({name: rows}, steps=2)
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
        _require_no_conflict(jacobian, subject.combine(jacobian), rounding)

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
        _require_no_conflict(jacobian, subject.combine(jacobian), _CONFLICTS[dtype] * norms * norms.mean())


def _require_no_conflict(jacobian: Tensor, direction: Tensor, rounding: Tensor) -> None:
    inner = jacobian.double() @ direction.double()
    if bool((inner < -rounding).any()):
        raise CheckFailure("the direction conflicts with a row", direction=direction, inner_products=inner)
