"""Checks of the trait `differentiable` against finite differences, with the likely cause of a failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradhomog.rows import Jacobian
from gradhomog.step.step import StageResult
from gradhomog.testing.check import CheckFailure, check
from gradhomog.testing.comparisons import central_difference, derivatives_close
from gradhomog.testing.homogenizers.side_effects import wrap_stages
from gradhomog.testing.homogenizers.subject import Direction, HomogenizerSubject, Rows

Inputs = dict[str, Tensor]
"""Tensors by the names `rows` and `losses`."""


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
            direction = _differentiable(subject, at["rows"], at["losses"], earlier)
            assert isinstance(direction, Tensor)
            return direction @ probe

        wrong = [name for name in inputs if not _first_order_is_close(value, inputs, name, along[name])]
        for name in wrong:
            raise _explain_failure(subject, value, inputs, name, along[name], earlier, wrong)
        _require_second_order(value, inputs, along, tasks, earlier)
        _require_finite_derivatives_at_zero(value, inputs)


def _first_order(value: Callable[[Inputs], Tensor], inputs: Inputs, name: str, along: Tensor) -> tuple[float, float]:
    """Return the derivative along a direction in one input, by autograd and by central differences."""
    variable = inputs[name].clone().requires_grad_()
    gradient = _gradients(value({**inputs, name: variable}), [variable])[0]
    found = 0.0 if gradient is None else float((gradient * along).sum())
    return found, float(central_difference(lambda t: value({**inputs, name: _leaf(inputs[name] + t * along)})))


def _gradients(result: Tensor, variables: list[Tensor]) -> Sequence[Tensor | None]:
    """Return gradients of the result; None for variables that its graph does not contain."""
    if not result.requires_grad:
        return [None] * len(variables)
    return torch.autograd.grad(result, variables, allow_unused=True)


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()


def _first_order_is_close(value: Callable[[Inputs], Tensor], inputs: Inputs, name: str, along: Tensor) -> bool:
    return derivatives_close(*_first_order(value, inputs, name, along), scale=1.0)


def _explain_failure(
    subject: HomogenizerSubject, value: Callable[[Inputs], Tensor], inputs: Inputs, name: str, along: Tensor,
    earlier: int, wrong: Sequence[str],
) -> CheckFailure:  # fmt: skip
    """Return the failure with both derivatives and the likely cause."""
    found, expected = _first_order(value, inputs, name, along)
    tasks = len(inputs["losses"])
    where = f"in the {'second' if earlier else 'first'} step, with {tasks} tasks"
    numbers = (
        f"the derivative of the direction w.r.t. the {name} is wrong {where}: along a random direction it is "
        f"{found:.6g}; finite differences give {expected:.6g}"
    )
    return CheckFailure(f"{numbers}. Likely cause: {_cause(subject, inputs, name, found, expected, earlier)}")


def _cause(
    subject: HomogenizerSubject, inputs: Inputs, name: str, found: float, expected: float, earlier: int
) -> str:  # fmt: skip
    detached = _find_detached_stage(subject, inputs, earlier, name)
    if detached:
        stage, quantity = detached
        return f"`{stage}` detaches its {quantity} (.detach(), .item(), .tolist(), torch.tensor(...), no_grad)"
    if derivatives_close(expected, 0.0) and name == "losses" and not earlier:
        return (
            "state is initialized from this step's losses without their graph, so the first step's result does not "
            "change with the losses although the derivative by autograd is not zero; initialize the state by a "
            "constant, or set it only in `update`"
        )
    if derivatives_close(found, 0.0):
        stages = [stage for stage in ("mix", "rows") if _overrides(subject, stage)]
        return f"`{' or '.join(stages) or 'mix'}` detaches its {name}: the result depends on them, its graph does not"
    if earlier:
        return "a result computed from the state of an earlier step is detached, or uses this step's state instead"
    return "a part of the computation is detached, or a custom backward is wrong"


def _overrides(subject: HomogenizerSubject, stage: str) -> bool:
    return any(type(homogenizer).overrides(stage) for homogenizer in subject.pipeline())


def _find_detached_stage(
    subject: HomogenizerSubject, inputs: Inputs, earlier: int, name: str
) -> tuple[str, str] | None:  # fmt: skip
    """Return the stage whose result changes with the rows or losses but has no graph to them, and the quantity.

    `name` is the input with the wrong derivative.
    """
    results: list[tuple[str, Tensor]] = []

    def record(homogenizer: Any, stage: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
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
        found, expected = _first_order(directional_derivative, inputs, name, along[name].flip(0))
        if not derivatives_close(found, expected, scale=1.0):
            raise CheckFailure(
                f"the second derivative w.r.t. the {name} is wrong in the {'second' if earlier else 'first'} step, "
                f"with {tasks} tasks: along random directions it is {found:.6g}; finite differences of the first "
                f"derivative, which is correct, give {expected:.6g}. Likely cause: a custom backward, or "
                "torch.autograd.grad without create_graph=True, detaches the first derivative"
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
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shapes = {name: value.shape for name, value in model.named_parameters()}
    start = {name: 0.5 * normal(*shape) for name, shape in shapes.items()}
    probe = {name: normal(*shape) for name, shape in shapes.items()}
    tasks = [(normal(5, 3), normal(5, 2), normal(5, 3), normal(5, 2)) for _ in range(2)]
    support_x, support_y, query_x, query_y = tasks[0]
    tasks.append((support_x, -support_y, query_x, -query_y))  # negated targets of the first task, so that rows conflict

    def value(parameters: dict[str, Tensor]) -> Tensor:
        rows, losses = _meta_rows(model, parameters, tasks)
        direction = _differentiable(subject, rows, losses, 1)
        assert isinstance(direction, dict)
        return torch.stack([(direction[name] * probe[name]).sum() for name in probe]).sum()

    variables = {name: _leaf(tensor) for name, tensor in start.items()}
    gradients = _gradients(value(variables), list(variables.values()))
    for _ in range(3):
        along = {name: normal(*shape) for name, shape in shapes.items()}
        expected = float(central_difference(lambda t: value({n: _leaf(start[n] + t * along[n]) for n in start})))  # noqa: B023
        pairs = zip(gradients, along.values(), strict=True)
        found = float(sum((g * a).sum().detach() for g, a in pairs if g is not None))
        if not derivatives_close(found, expected, scale=1.0):
            raise CheckFailure(
                f"the derivative through the inner loop is {found:.6g}; finite differences give {expected:.6g}. Likely "
                "cause: rows in a dict are detached, while rows in one tensor are not"
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
            support_loss = loss(adapted, support_x, support_y)
            gradients = torch.autograd.grad(support_loss, list(adapted.values()), create_graph=True)
            adapted = {name: p - 0.1 * g for (name, p), g in zip(adapted.items(), gradients, strict=True)}
        query = loss(adapted, query_x, query_y)
        rows.append(torch.autograd.grad(query, list(parameters.values()), create_graph=True))
        losses.append(query)
    stacked = {name: torch.stack(parts) for name, parts in zip(parameters, zip(*rows, strict=True), strict=True)}
    return stacked, torch.stack(losses)


def _differentiable(subject: HomogenizerSubject, rows: Rows, losses: Tensor, earlier: int) -> Direction:
    """Return the direction with its graph, after `earlier` steps on fixed other rows."""
    pipe = _after_steps(subject, rows, earlier)
    return subject.combine(rows, pipe=pipe, losses=losses, create_graph=True)


def _after_steps(subject: HomogenizerSubject, rows: Rows, earlier: int) -> Any:
    pipe, generator = subject.pipeline(assume="differentiable"), torch.Generator().manual_seed(3)

    def random_like(value: Tensor) -> Tensor:
        return torch.randn(value.shape, generator=generator, dtype=value.dtype)

    for _ in range(earlier):
        other_rows: Rows = (
            random_like(rows)
            if isinstance(rows, Tensor)
            else {name: random_like(value) for name, value in rows.items()}
        )
        subject.combine(other_rows, pipe=pipe)
    return pipe
