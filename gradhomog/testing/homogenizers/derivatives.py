"""Derivatives: of the direction by rows and losses, and of losses through what acts before rows exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradhomog.evidence import TaskKey
from gradhomog.learners import Learner
from gradhomog.pipelines import Pipeline
from gradhomog.reports import TaskRow
from gradhomog.rows import Direction
from gradhomog.testing.checking import CheckFailure, NotApplicable, check
from gradhomog.testing.homogenizers.subject import HomogenizerSubject

STEP, RTOL = 1e-5, 1e-4  # of central differences in float64


@check("homogenizers", claim="differentiable")
def differentiable(subject: HomogenizerSubject) -> None:
    """The direction is differentiable in rows and losses, twice: `gradcheck` and `gradgradcheck` in float64.

    In the first step of two tasks and in the second of four; and where a row is zero, derivatives are not NaN.
    """
    for tasks, earlier in ((2, 0), (4, 1)):
        generator = torch.Generator().manual_seed(7 * tasks)
        rows = torch.randn(tasks, 6, generator=generator, dtype=torch.float64)
        rows[1] = 0.6 * rows[1] - 0.8 * rows[0]  # many methods do nothing, and cut no graph, where no rows conflict
        rows.requires_grad_()
        losses = torch.rand(tasks, generator=generator, dtype=torch.float64).add(0.5).requires_grad_()

        def direction(jacobian: Tensor, values: Tensor, earlier: int = earlier) -> Tensor:
            # A fresh one for each of the many calls: orders and weights must be those of one and the same step.
            found = _differentiable(subject, jacobian, values, earlier)
            assert isinstance(found, Tensor)
            return found

        for judge in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
            try:
                judge(direction, (rows, losses))
            except RuntimeError as error:  # GradcheckError is one
                reason = " ".join(str(error).split())[:300]
                raise CheckFailure(
                    f"{judge.__name__} with {tasks} tasks: {reason}", jacobian=rows, losses=losses
                ) from None

        beside_zero = torch.cat([torch.zeros_like(rows[:1]), rows[1:].detach()]).requires_grad_()
        slopes = torch.autograd.grad(direction(beside_zero, losses).sum(), (beside_zero, losses), allow_unused=True)
        if not all(bool(slope.isfinite().all()) for slope in slopes if slope is not None):
            raise CheckFailure(
                "with a zero row a derivative is NaN or infinity: keep the root and the quotient of zero out of it",
                jacobian=beside_zero, derivatives=slopes[0],
            )  # fmt: skip


@check("homogenizers", claim="differentiable")
def meta_gradient(subject: HomogenizerSubject) -> None:
    """A function of the direction differentiates through an inner loop as finite differences say.

    Rows are meta-gradients of a small network after two inner steps, with their graph, in the homogenizer's second
    step; the direction's derivative by the network's parameters is compared along three random directions.
    """
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shapes = {name: value.shape for name, value in model.named_parameters()}
    start = {name: 0.5 * normal(*shape) for name, shape in shapes.items()}
    probe = {name: normal(*shape) for name, shape in shapes.items()}
    tasks = [(normal(5, 3), normal(5, 2), normal(5, 3), normal(5, 2)) for _ in range(2)]
    support_x, support_y, query_x, query_y = tasks[0]
    tasks.append((support_x, -support_y, query_x, -query_y))  # against the first: rows that conflict

    def value(parameters: dict[str, Tensor]) -> Tensor:
        rows, losses = _meta_rows(model, parameters, tasks)
        direction = _differentiable(subject, rows, losses, 1)
        assert isinstance(direction, dict)
        return torch.stack([(direction[name] * probe[name]).sum() for name in probe]).sum()

    variables = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    gradients = torch.autograd.grad(value(variables), list(variables.values()), allow_unused=True)
    for _ in range(3):
        along = {name: normal(*shape) for name, shape in shapes.items()}
        forward, backward = (
            float(value({name: (start[name] + sign * STEP * along[name]).requires_grad_() for name in start}).detach())
            for sign in (1, -1)
        )
        expected = (forward - backward) / (2 * STEP)
        pairs = zip(gradients, along.values(), strict=True)
        found = float(sum((g * a).sum().detach() for g, a in pairs if g is not None))
        if abs(found - expected) > RTOL * max(abs(expected), 1e-3):
            raise CheckFailure(
                f"the derivative through the inner loop is {found:.8g}; finite differences say {expected:.8g}"
            )


def _meta_rows(
    model: nn.Module, parameters: dict[str, Tensor], tasks: Sequence[tuple[Tensor, ...]]
) -> tuple[dict[str, Tensor], Tensor]:
    def loss(at: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(functional_call(model, at, (x,)), y)

    rows, losses = [], []
    for support_x, support_y, query_x, query_y in tasks:
        adapted = parameters
        for _ in range(2):
            slopes = torch.autograd.grad(loss(adapted, support_x, support_y), list(adapted.values()), create_graph=True)
            adapted = {
                name: tensor - 0.1 * slope for (name, tensor), slope in zip(adapted.items(), slopes, strict=True)
            }
        query = loss(adapted, query_x, query_y)
        rows.append(torch.autograd.grad(query, list(parameters.values()), create_graph=True))
        losses.append(query)
    stacked = {name: torch.stack(parts) for name, parts in zip(parameters, zip(*rows, strict=True), strict=True)}
    return stacked, torch.stack(losses)


def _differentiable(
    subject: HomogenizerSubject, rows: Tensor | dict[str, Tensor], losses: Tensor, earlier: int
) -> Direction:
    """The direction with its graph, after some steps on other rows, always the same."""
    pipe, generator = subject.pipeline(assume="differentiable"), torch.Generator().manual_seed(3)

    def other(value: Tensor) -> Tensor:
        return torch.randn(value.shape, generator=generator, dtype=value.dtype)

    for _ in range(earlier):
        others = other(rows) if isinstance(rows, Tensor) else {name: other(value) for name, value in rows.items()}
        subject.combine(others, pipe=pipe)
    return subject.combine(rows, pipe=pipe, losses=losses, create_graph=True)


@check("homogenizers")
def rows_are_derivatives(subject: HomogenizerSubject) -> None:
    """Where it acts before rows exist, rows are still the derivatives of the losses that were computed.

    With what it attaches and transforms in place: rows of learners that promise exact ones, against finite differences
    of their losses. What is drawn is a constant to rows, so it has to be the same for all: either from the same state,
    or held by the homogenizer from one run of a task to the next.
    """
    if not subject.acts_before_rows:
        raise NotApplicable("it acts on rows only")
    exact = [name for name in subject.arena.learners if subject.arena.exact(name)]
    if not exact:
        raise NotApplicable("no learner here promises rows that are exact derivatives")
    for name in exact:
        complaints = [_off_differences(subject, name, held) for held in (False, True)]
        if all(complaints):
            raise CheckFailure(complaints[0])


def _off_differences(subject: HomogenizerSubject, name: str, held: bool) -> str:
    task, key = subject.arena.batch(seed=5, tasks=1)[0], TaskKey(0, "domain 0")
    pipe: Pipeline = subject.pipeline()
    subject.exercise(pipe, 3)  # a rotation begins at the identity
    made = subject.arena.learner(name, pipe)
    state = pipe.state_dict()

    def row() -> TaskRow:
        if not held:
            pipe.load_state_dict(state)
        return made.task_row(task, key)

    with made.mode(training=True), pipe.attached(made.encoder):
        return _compare(made, name, row)


def _compare(made: Learner, name: str, row: Callable[[], TaskRow]) -> str:
    gradients, generator = row().gradients, torch.Generator().manual_seed(2)
    for parameter, value in made.named_parameters().items():
        along = torch.randn(value.shape, generator=generator, dtype=value.dtype)
        start, ends = value.detach().clone(), []
        for sign in (1, -1):
            value.data.copy_(start + sign * STEP * along)
            ends.append(float(row().loss))
        value.data.copy_(start)
        expected = (ends[0] - ends[1]) / (2 * STEP)
        gradient = gradients[parameter]
        found = 0.0 if gradient is None else float((gradient * along).sum())
        if abs(found - expected) > RTOL * abs(expected) + 1e-7:
            return (
                f"the row of `{parameter}` with {name} is not the derivative of the loss: along a random direction it "
                f"is {found:.8g}; finite differences say {expected:.8g}"
            )
    return ""
