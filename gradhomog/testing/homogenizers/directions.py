"""Checks of the direction: finite, of the right form, that of the plain learner where tasks agree, and invariances."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from gradhomog.errors import GradhomogError, OptionError
from gradhomog.learners import Learner
from gradhomog.registry.options import accepted
from gradhomog.tasks import TaskBatch
from gradhomog.testing import small_network
from gradhomog.testing.checking import CheckFailure, NotApplicable, check, full_or_fast
from gradhomog.testing.comparing import agree
from gradhomog.testing.homogenizers.subject import HomogenizerSubject
from gradhomog.testing.option_values import option_types, values_of
from gradhomog.testing.property_search import for_all
from gradhomog.testing.strategies import jacobians


def _rows(tasks: int, params: int, seed: int = 0) -> Tensor:
    return torch.randn(tasks, params, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _size(rows: Tensor) -> float:
    return float(rows.norm(dim=1).max())


@check("homogenizers")
def finite_for_finite_rows(subject: HomogenizerSubject) -> None:
    """Every finite matrix of rows has a finite direction of its shape and dtype, over two steps.

    Zero, duplicate and opposite rows, one task, norms that differ by six orders of magnitude; float64 and float32.
    """

    @for_all(jacobian=jacobians(), dtype=st.sampled_from([torch.float64, torch.float32]))
    def _(jacobian: Tensor, dtype: torch.dtype) -> None:
        direction = subject.combine(jacobian.to(dtype), steps=2)
        if not isinstance(direction, Tensor) or direction.shape != jacobian.shape[1:] or direction.dtype != dtype:
            found = f"{tuple(direction.shape)} {direction.dtype}" if isinstance(direction, Tensor) else direction
            raise CheckFailure(f"the direction is {found}; expected {tuple(jacobian.shape[1:])} {dtype}")
        if not bool(torch.isfinite(direction).all()):
            raise CheckFailure("the direction is not finite", direction=direction)


@check("homogenizers")
def half_precision(subject: HomogenizerSubject) -> None:
    """Rows of float16 and bfloat16 give the direction of the same rows in float64, up to their precision.

    With entries of about 1 and of about 100, whose squares overflow in float16 when summed.
    """
    for dtype, size in itertools.product((torch.float16, torch.bfloat16), (1.0, 100.0)):
        rows = (size * _rows(4, 33, seed=1)).to(dtype)
        expected = subject.vector(rows.double()).to(dtype)
        what = f"{dtype}, entries of about {size:g}"
        agree(subject.combine(rows), expected, what, rtol=1e-2, atol=1e-2 * size)


@check("homogenizers")
def dict_rows(subject: HomogenizerSubject) -> None:
    """Rows as a dict of tensors `[tasks, *shape]` give the direction of the same rows as one matrix."""
    rows = _rows(4, 18, seed=2)
    parts = {"weight": rows[:, :12].reshape(4, 3, 4), "scalar": rows[:, 12], "bias": rows[:, 13:]}
    direction = subject.combine(parts, steps=2)
    if not isinstance(direction, dict) or {k: v.shape for k, v in direction.items()} != {
        name: value.shape[1:] for name, value in parts.items()
    }:
        raise CheckFailure(f"the direction of a dict of rows must be a dict of the same names and shapes; {direction}")
    found = torch.cat([direction[name].reshape(-1) for name in parts])
    agree(found, subject.vector(rows, steps=2), "a dict of rows", rtol=1e-9, atol=1e-12, jacobian=rows)


@check("homogenizers")
def devices(subject: HomogenizerSubject) -> None:
    """On every device of this machine the direction is that of the CPU, and lies on the device."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not any(available.values()):
        raise NotApplicable("this machine has no other device than the CPU")
    rows = _rows(4, 33, seed=3).float()
    expected = subject.vector(rows, steps=2)
    for device in (name for name, there in available.items() if there):
        found = subject.combine(rows.to(device), steps=2)
        if not isinstance(found, Tensor) or found.device.type != device:
            raise CheckFailure(f"the direction of rows on {device} is not on {device}")
        agree(found.cpu(), expected, device, rtol=1e-4, atol=1e-5)


@check("homogenizers")
def options_work(subject: HomogenizerSubject) -> None:
    """Every value that the annotation of an option allows can be used: it gives a finite direction.

    Numbers, truth values and choices, one option at a time; numbers from 0.001 to 1000, integers up to 20. An
    `OptionError`, for a combination that cannot be used, names an option.
    """
    sampled = {name: strategy for name, hint in option_types(subject.spec) if (strategy := values_of(hint)) is not None}
    if not sampled:
        raise NotApplicable("it has no option that is a number, a truth value or a choice")
    rows = _rows(3, 7)

    @for_all(option=st.sampled_from(sorted(sampled)).flatmap(lambda name: st.tuples(st.just(name), sampled[name])))
    def _(option: tuple[str, Any]) -> None:
        name, value = option
        try:
            direction = subject.vector(rows, pipe=subject.pipeline(**{name: value}), steps=2)
        except OptionError as error:
            if not any(other in str(error) for other in accepted(subject.spec)):
                raise CheckFailure(f"the error about option `{name}`={value!r} names no option: {error}") from error
            return
        except GradhomogError as error:
            found = f"{type(error).__name__}: {error}"
            raise CheckFailure(f"option `{name}`={value!r} is allowed by its annotation, and raises {found}") from error
        if not bool(direction.isfinite().all()):
            raise CheckFailure(f"option `{name}`={value!r} is allowed by its annotation; the direction is not finite")


# -- tasks that agree ------------------------------------------------------------------------------------------------


@check("homogenizers")
def identical_rows(subject: HomogenizerSubject) -> None:
    """N identical rows give that row, over two steps, for N from 1 to 6: one scale for all methods."""

    @for_all(jacobian=jacobians(tasks=1, params=(1, 9)), tasks=st.integers(1, 6))
    def _(jacobian: Tensor, tasks: int) -> None:
        direction = subject.combine(jacobian.repeat(tasks, 1), steps=2)
        agree(direction, jacobian[0], f"{tasks} identical rows", rtol=1e-9, atol=1e-12 * float(jacobian.abs().max()))


@check("homogenizers")
def no_gradient_no_direction(subject: HomogenizerSubject) -> None:
    """Rows that are all zero give the direction zero, exactly."""
    for tasks in (1, 3):
        direction = subject.combine(torch.zeros(tasks, 4), steps=2)
        if not isinstance(direction, Tensor) or bool((direction != 0).any()):
            raise CheckFailure("zero rows give a direction", jacobian=torch.zeros(tasks, 4), direction=direction)


@check("homogenizers")
def identical_tasks(subject: HomogenizerSubject) -> None:
    """N times the same task: three meta-steps of the installed learners are those of the plain learner.

    Where it attaches something to the encoder, only as long as rows of such tasks are those of the plain learner:
    dropout of activations is the identity for no learner. Features are to be transformed only where tasks differ. Of a
    homogenizer that claims `momentum`, the first step.
    """
    compared = 0
    steps = 1 if "momentum" in subject.claims else 3
    names = subject.learner_names()
    for name in names[: full_or_fast(len(names), 2)]:
        plain, other = subject.learners.make(name, None), subject.learners.make(name, subject.pipeline())
        optimizers = [torch.optim.SGD(made.parameters(), lr=0.1) for made in (plain, other)]
        for step in range(steps):
            batch = small_network.repeated_task(seed=step)
            if subject.attaches and not _rows_agree(plain, other, batch):
                break
            for made, optimizer in zip((plain, other), optimizers, strict=True):
                made.step(batch, optimizer)
            for parameter, value in plain.named_parameters().items():
                found = other.named_parameters()[parameter].detach()
                what = f"`{parameter}` of {name} after {step + 1} steps on identical tasks"
                agree(found, value.detach(), what, rtol=1e-7, atol=1e-10)
            compared += 1
    if not compared:
        raise NotApplicable("its rows of identical tasks are not those of the plain learner")


def _rows_agree(plain: Learner, other: Learner, batch: TaskBatch) -> bool:
    state = other.homogenizers.state_dict()
    expected, found = plain.rows(batch).jacobian, other.rows(batch).jacobian
    other.homogenizers.load_state_dict(state)
    return all(torch.allclose(found[name], expected[name], rtol=1e-9, atol=1e-12) for name in expected)


# -- claims ----------------------------------------------------------------------------------------------------------

# More parameters than tasks: with fewer, several sets of weights may be best, and rounding chooses among them.
_FREE = jacobians(tasks=(2, 6), params=(7, 12), spread=3, zero=False, duplicate=False, opposite=False)


@check("homogenizers", claim="permutation_equivariant")
def permutation_equivariant(subject: HomogenizerSubject) -> None:
    """The order of the tasks does not matter: rows, losses, domains and features permuted give the same direction.

    In the second of two steps: state by slot belongs to the slot, not to the task, and breaks this.
    """

    @for_all(jacobian=_FREE, places=st.permutations(range(6)))
    def _(jacobian: Tensor, places: list[int]) -> None:
        order = torch.tensor([place for place in places if place < len(jacobian)])
        pipe, other = subject.pipeline(), subject.pipeline()
        for made in (pipe, other):
            subject.combine(jacobian, pipe=made)
        plain = subject.vector(jacobian, pipe=pipe)
        found = subject.combine(jacobian[order], pipe=other, order=order)
        agree(found, plain, f"rows in the order {order.tolist()}", rtol=1e-6, atol=1e-9 * _size(jacobian))


_EXPONENTS = st.integers(-59, 59) | st.sampled_from([-59, 59])  # at the ends the smallest epsilon shows


@check("homogenizers", claim="scale_equivariant")
def scale_equivariant(subject: HomogenizerSubject) -> None:
    """A common factor of float32 rows, from 1e-18 to 1e18, is the same factor of the direction, over three steps."""

    @for_all(jacobian=jacobians(tasks=(1, 5), params=(6, 12), spread=2, opposite=False), exponent=_EXPONENTS)
    def _(jacobian: Tensor, exponent: int) -> None:
        rows, factor = jacobian.float(), 2.0**exponent
        plain = subject.vector(rows, steps=3)
        found = subject.vector(rows * factor, steps=3)
        agree(found / factor, plain, f"rows times 2^{exponent}", rtol=1e-4, atol=1e-4 * _size(jacobian))


@check("homogenizers", claim="loss_scale_invariant")
def loss_scale_invariant(subject: HomogenizerSubject) -> None:
    """A common factor of the losses, from 1e-12 to 1e12, changes nothing, over three steps with other losses each.

    An absolute epsilon beside losses shows at one end, a threshold at the other.
    """
    if "losses" not in subject.spec.needs:
        raise NotApplicable("it reads no losses")
    rows, losses = _rows(3, 8), torch.tensor([[0.5, 1.0, 2.0], [0.4, 1.1, 0.9], [0.6, 0.3, 0.8]], dtype=torch.float64)

    def direction(factor: float) -> Tensor:
        pipe = subject.pipeline()
        return [subject.vector(rows, losses=factor * row, pipe=pipe) for row in losses][-1]

    plain = direction(1.0)
    for factor in (1e-12, 1e-6, 1e6, 1e12):
        what = f"the direction with losses times {factor:g}"
        agree(direction(factor), plain, what, rtol=1e-6, atol=1e-9 * _size(rows), losses=factor * losses)


@check("homogenizers", claim="rotation_equivariant")
def rotation_equivariant(subject: HomogenizerSubject) -> None:
    """A rotation of parameter space rotates the direction: only inner products of rows count, not coordinates."""

    @for_all(jacobian=_FREE, seed=st.integers(0, 100))
    def _(jacobian: Tensor, seed: int) -> None:
        rotation = torch.linalg.qr(_rows(jacobian.shape[1], jacobian.shape[1], seed))[0]
        expected = subject.vector(jacobian) @ rotation
        found = subject.combine(jacobian @ rotation)
        agree(found, expected, "rotated rows", rtol=1e-6, atol=1e-8 * _size(jacobian), rotation=rotation)


@check("homogenizers", claim="non_conflicting")
def non_conflicting(subject: HomogenizerSubject) -> None:
    """The direction has no negative inner product with any row, beyond rounding."""

    @for_all(jacobian=jacobians(), examples=80)
    def _(jacobian: Tensor) -> None:
        direction = subject.vector(jacobian)
        inner, norms = jacobian @ direction, jacobian.norm(dim=1)
        rounding = 1e-9 * norms * norms[norms > 0].min() if bool(norms.any()) else norms
        if bool((inner < -rounding).any()):
            raise CheckFailure("the direction conflicts with a row", direction=direction, inner_products=inner)
