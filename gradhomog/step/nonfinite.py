"""The policy for tasks with NaN or infinity, and the error for a direction that is not finite."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gradhomog.errors import GradhomogError, NonfiniteError, PluginRunError
from gradhomog.rows import Jacobian, all_finite
from gradhomog.rows.arithmetic import task_index, to_cpu
from gradhomog.step.member import Member
from gradhomog.step.step import StageResult, Step

Nonfinite = Literal["raise", "drop"]


class StageOutcome(NamedTuple):
    """The outcome of one `mix` or `rows` stage: the member, its view of the step, its result, and the rows after it."""

    member: Member
    step: Step
    result: StageResult
    rows: Jacobian

    @property
    def mixing(self) -> Tensor | None:
        """The mixing of the rows of the step after a `mix` stage; None after a `rows` stage."""
        return self.rows.mixing if self.member.stage == "mix" else None

    @property
    def is_idle(self) -> bool:
        """True if the stage leaves one row unchanged: its weight is one, or the method has no state.

        A weight beside those of absent tasks has an effect, also if it is one.
        """
        if self.member.stage == "mix":
            return not (self.member.weighs and self.step.absent) and bool((self.result.value - 1).abs().max() < 1e-9)
        return not self.member.homogenizer.state_names


def drop_nonfinite(step: Step, transforming: Sequence[Member]) -> Step:
    """Return the step without the tasks that are not finite.

    Raises:
        NonfiniteError: no task is finite.
        PluginRunError: a `transform` stage returned features that are not finite.
    """
    kept = _finite_tasks(step)
    if len(kept) == step.tasks:
        return step
    _require_finite_transforms(step, transforming)
    if not kept:
        raise NonfiniteError(f"{_describe(step, kept)} No task remains.")
    return _select(step, kept)


def require_finite_inputs(step: Step, transforming: Sequence[Member], cause: Exception | None = None) -> None:
    """Raise an error that names the task if a task is not finite.

    Raises:
        NonfiniteError: a loss, a row or a gradient w.r.t. features is not finite.
        PluginRunError: a `transform` stage returned features that are not finite.
    """
    _require_finite_transforms(step, transforming)
    losses = [0.0] * step.tasks if step._losses is None else step._losses.tolist()
    kept = [task for task, loss in enumerate(losses) if math.isfinite(loss)]
    kept = _finite_tasks(step) if len(kept) == step.tasks else kept  # if a loss is not finite, skip the rows
    if len(kept) < step.tasks:
        raise NonfiniteError(
            f"{_describe(step, kept)} To exclude such tasks from the step, create the pipeline by "
            'gradhomog.pipeline(..., nonfinite="drop").'
        ) from cause


def _select(step: Step, tasks: Sequence[int]) -> Step:
    """Return the step of some of the tasks."""
    index, traces = list(tasks), step._kernel_traces
    losses, targets = step._losses, step._targets
    return replace(
        step,
        keys=tuple(step.keys[task] for task in index),
        _jacobian=step._jacobian.select(index),
        _losses=None if losses is None else losses[task_index(index, losses.device)],
        _features=[tensor[task_index(index, tensor.device)] for tensor in step._features],
        _feature_grads=[tensor[task_index(index, tensor.device)] for tensor in step._feature_grads],
        _targets=None if targets is None else targets[task_index(index, targets.device)],
        _kernel_traces=None if traces is None else lambda probes, generator: traces(probes, generator)[index],
    )


def _finite_tasks(step: Step) -> list[int]:
    """Return the indices of the tasks whose loss, gradients w.r.t. features and row are finite."""
    finite = to_cpu([tensor.detach().flatten(1).isfinite().all(1) for tensor in step._feature_grads])
    if step._losses is not None:
        finite.append(step._losses.detach().isfinite())
    flags = [column.tolist() for column in finite]
    rows = [math.isfinite(square) for square in step._jacobian.squared_norms().tolist()]
    if not all(rows):  # a norm may overflow although the row is finite
        rows = step._jacobian.finite_tasks()
    return [task for task in range(step.tasks) if rows[task] and all(column[task] for column in flags)]


def _require_finite_transforms(step: Step, transforming: Sequence[Member]) -> None:
    for member, before, after in zip(transforming, step._features, step._features[1:], strict=False):
        if all_finite([before]) and not all_finite([after]):
            raise member.not_finite("transform")


def find_cause(step: Step, outcomes: Sequence[StageOutcome], transforming: Sequence[Member]) -> GradhomogError:
    """Return the error for a direction that is not finite: its cause is a task, a member or an overflow."""
    if step._losses is None or all_finite([step._losses]):
        for outcome in outcomes:
            member, mixing = outcome.member, outcome.mixing
            if mixing is not None and member.needs <= {"losses"} and not all_finite([mixing]):
                return member.not_finite("mix", _values(mixing))  # from finite losses alone
    require_finite_inputs(step, transforming)
    for outcome in outcomes:
        member, mixing = outcome.member, outcome.mixing
        if not (all(outcome.rows.finite_tasks()) if mixing is None else all_finite([mixing])):
            return find_overflow(member, outcome.step, member.not_finite(member.stage or "", _values(mixing)))
    weights = [(float(m.abs().max()), one) for one in outcomes if (m := one.mixing) is not None]
    if not weights:
        return NonfiniteError("the mean of the rows overflows, although every row is finite. Nothing was changed.")
    largest, outcome = max(weights, key=lambda pair: pair[0])
    member = outcome.member
    error = PluginRunError(
        f"{member} returned from `mix` weights of up to {largest:.1e}, so that the direction overflows in "
        f"{step.dtype}. Nothing was changed. {member.advice}"
    )
    return find_overflow(member, replace(outcome.step, _jacobian=step._jacobian), error)


def find_overflow(member: Member, view: Step, otherwise: GradhomogError) -> GradhomogError:
    """Return the error for rows that are too large if the member accepts the same rows in a smaller unit; else another.

    Args:
        view: the member's view of the step, in which its result is not finite, or it raised `otherwise`.
        otherwise: returned unchanged unless it blames the member.
    """
    rows = view._jacobian
    limit = min(1e150, torch.finfo(rows.dtype).max / 10) ** 2
    if not isinstance(otherwise, PluginRunError) or float(rows.squared_norms().detach().max()) <= limit:
        return otherwise
    largest = _largest_entry(rows)
    unit = rows.map(lambda block: block / largest)
    smaller = replace(view, _jacobian=unit, _feature_grads=[grad / largest for grad in view._feature_grads], aux=None)
    try:
        result = member.act(smaller) if member.stage else StageResult(unit)
        changed = unit.mix(result.value) if member.stage == "mix" else result.value
        if member.homogenizer.overrides("update"):
            member.update(smaller.with_aux(result.aux))
    except GradhomogError:
        return otherwise
    if not all_finite(changed.mean().values()):
        return otherwise
    return _too_large(f" for {member}, whose result overflows", largest)


def require_finite_gramian(step: Step, transforming: Sequence[Member]) -> None:
    """Raise if inner products overflow, from which a solver could compute weights without an error.

    Raises:
        NonfiniteError: a task is not finite, or the rows are too large.
    """
    if not bool(step._jacobian.total_gramian.isfinite().all()):
        require_finite_inputs(step, transforming)
        raise _too_large(", so that their inner products overflow", _largest_entry(step._jacobian))


def _too_large(reason: str, largest: float) -> NonfiniteError:
    return NonfiniteError(
        f"the rows are too large{reason}: the largest entry of a row is {largest:.1e}. Divide the losses by a "
        "constant. Nothing was changed."
    )


def _largest_entry(rows: Jacobian) -> float:
    return max(float(block.detach().abs().max()) for _, block in rows.by_parameter() if block.numel())


def _values(mixing: Tensor | None) -> str:
    return f": {mixing.detach().tolist()}" if mixing is not None and len(mixing) <= 8 else ""


def _describe(step: Step, kept: Sequence[int]) -> str:
    task, *others = [task for task in range(step.tasks) if task not in kept]
    losses = step._losses
    rate = "Lower the learning rate, that of the inner loop if there is one"
    if losses is not None and not torch.isfinite(losses[task]):
        advice = f"If it has no example in this batch, pass None as its loss. Otherwise check its data. {rate}."
        where = f"its loss is {losses[task].item()}"
    else:
        squares = step._jacobian.block_squared_norms[:, task].tolist()
        bad = [name for name, square in zip(step._jacobian.names, squares, strict=True) if not math.isfinite(square)]
        where = f"its gradient is not finite w.r.t. {', '.join(bad[:4]) or 'its features'}"
        if bad == [""]:  # rows in one tensor
            where = "its row contains NaN or infinity"
        advice = f"{rate}; an inner optimizer like Adam requires `eps_root` > 0."
    domain = f" of domain {step.keys[task].domain}" if step.keys[task].domain else ""
    more = f" (and tasks {', '.join(str(step.keys[other].slot) for other in others)})" if others else ""
    return f"task {step.keys[task].slot}{domain}{more} is not finite: {where}. {advice} Nothing was changed."
