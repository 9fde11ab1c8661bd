"""Checks of the direction: shape, dtype, finite values, identical tasks, invariances."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from gradhomog.errors import GradhomogError, OptionError
from gradhomog.learners.learner import Learner
from gradhomog.learners.tasks import TaskBatch
from gradhomog.registry.options import option_parameters
from gradhomog.testing import small_network
from gradhomog.testing.check import CheckFailure, NotApplicable, check, full_or_fast
from gradhomog.testing.comparisons import require_close
from gradhomog.testing.homogenizers.subject import HomogenizerSubject
from gradhomog.testing.option_values import values_of
from gradhomog.testing.property_search import for_all
from gradhomog.testing.strategies import jacobians

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
        expected = subject.vector(rows.double()).to(dtype)
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
    if not isinstance(direction, dict) or {k: v.shape for k, v in direction.items()} != {
        name: value.shape[1:] for name, value in parts.items()
    }:
        raise CheckFailure(
            f"the direction of a dict of rows must be a dict of the same names and shapes; got {direction}"
        )
    if "per_tensor" in subject.claims:
        return
    found = torch.cat([direction[name].reshape(-1) for name in parts])
    require_close(found, subject.vector(rows, steps=2), "a dict of rows", rtol=1e-9, atol=1e-12, jacobian=rows)


@check("homogenizers")
def devices(subject: HomogenizerSubject) -> None:
    """On every available device, the direction is on that device and close to the direction on the CPU."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not any(available.values()):
        raise NotApplicable("this machine has no device other than the CPU")
    rows = random_rows(4, 33, seed=3).float()
    expected = subject.vector(rows, steps=2)
    for device in (name for name, is_available in available.items() if is_available):
        found = subject.combine(rows.to(device), steps=2)
        if not isinstance(found, Tensor) or found.device.type != device:
            raise CheckFailure(f"the direction of rows on {device} is not on {device}")
        require_close(found.cpu(), expected, device, rtol=1e-4, atol=1e-5)


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
            direction = subject.vector(rows, pipe=subject.pipeline(**{name: value}), steps=2)
        except OptionError as error:
            if not any(other in str(error) for other in option_parameters(subject.spec)):
                raise CheckFailure(f"the error for option `{name}`={value!r} names no option: {error}") from error
            return
        except GradhomogError as error:
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
            assert isinstance(direction, Tensor)  # compared before
            factor = float(torch.nan_to_num(direction / jacobian[0]).abs().max())
            longer = 2.0**40 * rows
            if torch.allclose(subject.vector(longer, steps=2), longer[0], rtol=1e-9):
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
    names = subject.learner_names()
    for name in names[: full_or_fast(len(names), 2)]:
        plain, homogenized = subject.learners.make(name, None), subject.learners.make(name, subject.pipeline())
        optimizers = [torch.optim.SGD(learner.parameters(), lr=0.1) for learner in (plain, homogenized)]
        for step in range(steps):
            batch = small_network.repeated_task(seed=step)
            if subject.attaches and not _rows_are_close(plain, homogenized, batch):
                break
            for learner, optimizer in zip((plain, homogenized), optimizers, strict=True):
                learner.step(batch, optimizer)
            for parameter, value in plain.named_parameters().items():
                found = homogenized.named_parameters()[parameter].detach()
                what = f"`{parameter}` of {name} after {step + 1} steps on identical tasks"
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
