"""Checks of the trait `differentiable` against finite differences, with the likely cause of a failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog.rows import Jacobian
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.step import StageResult
from gradhomog.testing.assertions import central_difference, derivatives_close
from gradhomog.testing.check_results import CheckFailure, check
from gradhomog.testing.homogenizers.stage_side_effects import wrap_stages
from gradhomog.testing.subjects import HomogenizerSubject

Inputs = dict[str, Tensor]
"""Tensors by name: `rows` and `losses`, or the parameters of a network."""


@check("homogenizers", claim="differentiable")
def differentiable(subject: HomogenizerSubject) -> None:
    """The direction is twice differentiable w.r.t. rows and losses, compared with central differences in float64.

    The check compares derivatives in the first step of two tasks and in the second step of four, along random
    directions in rows and losses, like `torch.autograd.gradcheck` and `gradgradcheck` in their fast mode. If a row is
    zero, no derivative may be NaN.
    """
    for tasks, earlier in ((2, 0), (4, 1)):
        generator = torch.Generator().manual_seed(7 * tasks)
        rows = torch.randn(tasks, 6, generator=generator, dtype=torch.float64)
        rows[1] = 0.6 * rows[1] - 0.8 * rows[0]  # many methods change nothing, and detach nothing, without conflict
        inputs = {"rows": rows, "losses": torch.rand(tasks, generator=generator, dtype=torch.float64).add(0.5)}
        probe = torch.randn(6, generator=generator, dtype=torch.float64)
        along = {
            name: torch.randn(value.shape, generator=generator, dtype=torch.float64) for name, value in inputs.items()
        }

        def value(at: Inputs, earlier: int = earlier, probe: Tensor = probe) -> Tensor:
            # A new pipeline for each call, because random numbers and state must be those of the same step.
            direction: Tensor = _differentiable(subject, at["rows"], at["losses"], earlier)
            return direction @ probe

        for name in inputs:
            found, expected = _derivatives(value, inputs, {name: along[name]})
            if not derivatives_close(found, expected, scale=1.0):
                cause = _likely_cause(subject, inputs, name, expected, earlier)
                raise CheckFailure(
                    f"the derivative of the direction w.r.t. the {name} is wrong {_where(tasks, earlier)}: along a "
                    f"random direction it is {found:.6g}; finite differences give {expected:.6g}. Likely cause: {cause}"
                )
        _require_second_order(value, inputs, along, tasks, earlier)
        _require_finite_derivatives_at_zero(value, inputs)


def _derivatives(value: Callable[[Inputs], Tensor], inputs: Inputs, along: Inputs) -> tuple[float, float]:
    """Return the derivative along a direction in some of the inputs, by autograd and by central differences."""
    variables = {name: _leaf(inputs[name]) for name in along}
    gradients = _gradients(value({**inputs, **variables}), list(variables.values()))
    found = sum(float((g * a).sum()) for g, a in zip(gradients, along.values(), strict=True) if g is not None)

    def shifted(step: float) -> Tensor:
        return value({**inputs, **{name: _leaf(inputs[name] + step * a) for name, a in along.items()}})

    return found, float(central_difference(shifted))


def _gradients(result: Tensor, variables: list[Tensor]) -> Sequence[Tensor | None]:
    """Return gradients of the result; None for variables that its graph does not contain."""
    if not result.requires_grad:
        return [None] * len(variables)
    return torch.autograd.grad(result, variables, allow_unused=True)


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()


def _where(tasks: int, earlier: int) -> str:
    return f"in the {'second' if earlier else 'first'} step, with {tasks} tasks"


def _likely_cause(
    subject: HomogenizerSubject, inputs: Inputs, name: str, expected: float, earlier: int
) -> str:  # fmt: skip
    if detached := _find_detached_stage(subject, inputs, earlier, name):
        stage, quantity = detached
        return f"`{stage}` detaches its {quantity} (.detach(), .item(), .tolist(), torch.tensor(...), no_grad)"
    if derivatives_close(expected, 0.0) and name == "losses" and not earlier:
        return (
            "state is initialized from this step's losses without their graph, so the first step's result does not "
            "change with the losses although the derivative by autograd is not zero; initialize the state by a "
            "constant, or set it only in `update`"
        )
    if earlier:
        return "a result computed from the state of an earlier step is detached, or uses this step's state instead"
    return "a part of the computation is detached, or a custom backward is wrong"


def _find_detached_stage(
    subject: HomogenizerSubject, inputs: Inputs, earlier: int, name: str
) -> tuple[str, str] | None:  # fmt: skip
    """Return the stage whose result changes with the rows or losses but has no graph to them, and the quantity.

    `name` is the input with the wrong derivative.
    """
    results: list[tuple[str, Tensor]] = []

    def record(homogenizer: Any, stage: str, call: Callable[..., Any], *arguments: Any) -> Any:
        result = call(*arguments)
        value = result.value if isinstance(result, StageResult) else result
        if isinstance(value, Jacobian):
            value = torch.cat([block.flatten() for block in value.materialize().values()])
        if stage in ("mix", "rows") and isinstance(value, Tensor):
            results.append((stage, value))
        return result

    def stages(at: Inputs) -> list[tuple[str, Tensor]]:
        results.clear()
        pipe = _after_steps(subject, at["rows"], earlier)
        results.clear()
        subject.combine(at["rows"], losses=at["losses"], pipe=wrap_stages(pipe, record), create_graph=True)
        return list(results)

    variables = {other: _leaf(tensor) for other, tensor in inputs.items()}
    original = stages(variables)
    scaled = inputs[name] * torch.linspace(0.7, 1.4, inputs[name].numel(), dtype=torch.float64).view_as(inputs[name])
    changed = stages({**variables, name: _leaf(scaled)})
    for (stage, before), (_, after) in zip(original, changed, strict=True):
        [gradient] = _gradients(before.square().sum(), [variables[name]])
        if gradient is None and not torch.allclose(before, after, rtol=1e-9, atol=1e-12):
            return stage, "losses" if name == "losses" else "rows (or norms, or Gramian)"
    return None


def _require_second_order(
    value: Callable[[Inputs], Tensor], inputs: Inputs, along: Inputs, tasks: int, earlier: int
) -> None:
    def directional_derivative(at: Inputs) -> Tensor:
        """The derivative of the value along one direction in all inputs, with its graph."""
        variables = {name: tensor if tensor.requires_grad else _leaf(tensor) for name, tensor in at.items()}
        leaves = list(variables.values())
        gradients = torch.autograd.grad(value(variables), leaves, create_graph=True, allow_unused=True)
        parts = [(g * a).sum() for g, a in zip(gradients, along.values(), strict=True) if g is not None]
        return torch.stack(parts).sum()

    for name in inputs:
        # Another direction than the first: the second derivative along the same direction may vanish.
        found, expected = _derivatives(directional_derivative, inputs, {name: along[name].flip(0)})
        if not derivatives_close(found, expected, scale=1.0):
            raise CheckFailure(
                f"the second derivative w.r.t. the {name} is wrong {_where(tasks, earlier)}: along random directions "
                f"it is {found:.6g}; finite differences of the first derivative, which is correct, give "
                f"{expected:.6g}. Likely cause: a custom backward, or torch.autograd.grad without create_graph=True, "
                "detaches the first derivative"
            )


def _require_finite_derivatives_at_zero(value: Callable[[Inputs], Tensor], inputs: Inputs) -> None:
    rows = inputs["rows"].clone()
    rows[0] = 0
    variables = {"rows": _leaf(rows), "losses": _leaf(inputs["losses"])}
    gradients = torch.autograd.grad(value(variables), list(variables.values()), allow_unused=True)
    if not all(bool(gradient.isfinite().all()) for gradient in gradients if gradient is not None):
        raise CheckFailure(
            "with a zero row a derivative is NaN or infinity. Likely cause: a square root or a division at zero; "
            "replace the zero by torch.where before the root or the division",
            jacobian=rows.round(decimals=2),
        )


@check("homogenizers", claim="differentiable")
def meta_gradient(subject: HomogenizerSubject) -> None:
    """The direction is differentiable through an inner loop, compared with central differences.

    Rows are meta-gradients of a small network after two inner steps, with their graph, in the homogenizer's second
    step. The derivative of the direction w.r.t. the network's parameters is compared along three random directions.
    """
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shapes = {"first": (4, 3), "bias": (4,), "second": (2, 4)}
    start = {name: 0.5 * normal(*shape) for name, shape in shapes.items()}
    probe = {name: normal(*shape) for name, shape in shapes.items()}
    tasks = [(normal(5, 3), normal(5, 2), normal(5, 3), normal(5, 2)) for _ in range(2)]
    support_x, support_y, query_x, query_y = tasks[0]
    tasks.append((support_x, -support_y, query_x, -query_y))  # negated targets of the first task, so that rows conflict

    def value(parameters: Inputs) -> Tensor:
        rows, losses = _meta_rows(parameters, tasks)
        direction = _differentiable(subject, rows, losses, 1)
        return torch.stack([(direction[name] * probe[name]).sum() for name in probe]).sum()

    for _ in range(3):
        found, expected = _derivatives(value, start, {name: normal(*shape) for name, shape in shapes.items()})
        if not derivatives_close(found, expected, scale=1.0):
            raise CheckFailure(
                f"the derivative through the inner loop is {found:.6g}; finite differences give {expected:.6g}. Likely "
                "cause: rows in a dict are detached, while rows in one tensor are not"
            )


def _meta_rows(parameters: Inputs, tasks: Sequence[tuple[Tensor, ...]]) -> tuple[Inputs, Tensor]:
    def loss(at: Inputs, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss((x @ at["first"].T + at["bias"]).tanh() @ at["second"].T, y)

    def gradients(value: Tensor, at: Inputs) -> Inputs:
        return dict(zip(at, torch.autograd.grad(value, list(at.values()), create_graph=True), strict=True))

    rows, losses = [], []
    for support_x, support_y, query_x, query_y in tasks:
        adapted = parameters
        for _ in range(2):
            steps = gradients(loss(adapted, support_x, support_y), adapted)
            adapted = {name: value - 0.1 * steps[name] for name, value in adapted.items()}
        losses.append(loss(adapted, query_x, query_y))
        rows.append(gradients(losses[-1], parameters))
    return {name: torch.stack([row[name] for row in rows]) for name in parameters}, torch.stack(losses)


def _differentiable(subject: HomogenizerSubject, rows: Any, losses: Tensor, earlier: int) -> Any:
    """Return the direction with its graph, after `earlier` steps on fixed other rows."""
    return subject.combine(rows, pipe=_after_steps(subject, rows, earlier), losses=losses, create_graph=True)


def _after_steps(subject: HomogenizerSubject, rows: Any, earlier: int) -> Pipeline:
    pipe, generator = subject.pipeline(assume="differentiable"), torch.Generator().manual_seed(3)
    for _ in range(earlier):
        blocks = {"": rows} if isinstance(rows, Tensor) else rows
        other = {
            name: torch.randn(block.shape, generator=generator, dtype=block.dtype) for name, block in blocks.items()
        }
        subject.combine(other[""] if isinstance(rows, Tensor) else other, pipe=pipe)
    return pipe
