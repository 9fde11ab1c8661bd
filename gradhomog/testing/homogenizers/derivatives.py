"""Checks of the trait `differentiable` against finite differences, with the likely cause of a failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradhomog.rows import Jacobian
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.step import StageResult
from gradhomog.testing.assertions import central_difference, derivatives_close, require_derivative
from gradhomog.testing.check_results import CheckFailure, check
from gradhomog.testing.homogenizers.directions import in_tensors, random_rows
from gradhomog.testing.homogenizers.state import wrap_stages
from gradhomog.testing.subjects import HomogenizerSubject

Inputs = dict[str, Tensor]
"""Tensors by name: `rows` and `losses`."""

CUSTOM_BACKWARD = "a custom backward, or torch.autograd.grad without create_graph=True, detaches the first derivative"


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
            require_derivative(
                found, expected,
                f"the derivative of the direction w.r.t. the {name} is wrong {_where(tasks, earlier)}: along a random "
                "direction it is", scale=1.0,
                cause=partial(_likely_cause, subject, inputs, name, expected, earlier),
            )  # fmt: skip
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
        require_derivative(
            found, expected,
            f"the second derivative w.r.t. the {name} is wrong {_where(tasks, earlier)}, although the first is "
            "correct: along random directions it is", scale=1.0, cause=lambda: CUSTOM_BACKWARD,
        )  # fmt: skip


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
    """The direction of rows in a dict of tensors, as those of a network, is differentiable w.r.t. rows and losses.

    By the chain rule it is then differentiable through the inner loop that computes them. It is compared with central
    differences in the homogenizer's second step, along three random directions.
    """
    generator = torch.Generator().manual_seed(1)
    rows = random_rows(3, 18, seed=1)
    rows[2] = 0.6 * rows[2] - 0.8 * rows[0]  # so that rows conflict
    inputs = {"rows": rows, "losses": torch.linspace(0.5, 1.5, 3, dtype=torch.float64)}
    probe = in_tensors(random_rows(1, 18, seed=2))

    def value(at: Inputs) -> Tensor:
        direction = _differentiable(subject, in_tensors(at["rows"]), at["losses"], 1)
        return torch.stack([(direction[name] * probe[name][0]).sum() for name in probe]).sum()

    for _ in range(3):
        along = {name: torch.randn(x.shape, generator=generator, dtype=x.dtype) for name, x in inputs.items()}
        found, expected = _derivatives(value, inputs, along)
        require_derivative(
            found, expected, "the derivative of the direction of rows in a dict is", scale=1.0,
            cause=lambda: "rows in a dict are detached, while rows in one tensor are not",
        )  # fmt: skip


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
