"""Validate the inputs of one step of a pipeline."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradhomog.errors import DataError, NotDifferentiableError, OptionError
from gradhomog.rows import Jacobian, as_jacobian
from gradhomog.rows.device_copies import task_index, to_cpu
from gradhomog.step.member import Member
from gradhomog.step.step import KernelTraces
from gradhomog.step.task_key import TaskKey, task_keys

Rows = Tensor | Mapping[str, Tensor] | Jacobian

SMALLEST_SQUARE = 1e-280  # below, squares lose digits to underflow (at 1e-308), first those of shorter rows


@dataclass(frozen=True, eq=False)
class StepInputs:
    """Validated inputs of one step.

    Attributes:
        jacobian, keys: the rows and one key per task.
        losses: float64 `[tasks]`, or None.
        features, feature_grads: `[tasks, queries, features]` before the first `transform` stage and after each; may be
            empty.
        targets: `[tasks, queries]`, or None.
        kernel_traces: computes the traces of the tangent kernels, or None.
    """

    jacobian: Jacobian
    keys: tuple[TaskKey, ...]
    losses: Tensor | None = None
    features: Sequence[Tensor] = ()
    feature_grads: Sequence[Tensor] = ()
    targets: Tensor | None = None
    kernel_traces: KernelTraces | None = None

    @functools.cached_property
    def losses_on_cpu(self) -> Tensor | None:
        """The losses on the CPU; copied only if a homogenizer reads them, because the CPU waits for the device."""
        return None if self.losses is None else self.losses.cpu()

    def select(self, tasks: Sequence[int]) -> StepInputs:
        """Return the inputs of some of the tasks."""
        index = list(tasks)
        return replace(
            self,
            jacobian=self.jacobian.select(index),
            keys=tuple(self.keys[task] for task in index),
            losses=None if self.losses is None else self.losses[task_index(index, self.losses.device)],
            features=[tensor[task_index(index, tensor.device)] for tensor in self.features],
            feature_grads=[tensor[task_index(index, tensor.device)] for tensor in self.feature_grads],
            targets=None if self.targets is None else self.targets[task_index(index, self.targets.device)],
            kernel_traces=select_traces(self.kernel_traces, index),
        )

    def in_range(self) -> tuple[StepInputs, float]:
        """Return the inputs with rows whose squares do not underflow float64, and the factor of these rows.

        The factor is 2³⁰⁰ if all rows are shorter than 1e-140, otherwise 1: rows that were scaled stay shorter than
        others, so that state of both remains comparable. Not for members whose state contains rows.
        """
        if float(self.jacobian.total_squared_norms.detach().max()) >= SMALLEST_SQUARE:
            return self, 1.0
        factor = 2.0**300
        gradients = [tensor * factor for tensor in self.feature_grads]
        return replace(self, jacobian=self.jacobian.map(lambda rows: rows * factor), feature_grads=gradients), factor

    def finite_tasks(self) -> list[int]:
        """Return the indices of the tasks whose loss, gradients w.r.t. features and row are finite."""
        columns = to_cpu([tensor.detach().flatten(1).sum(1, dtype=torch.float64) for tensor in self.feature_grads])
        columns += [self.jacobian.squared_norms().detach()]
        columns += [] if self.losses_on_cpu is None else [self.losses_on_cpu.detach()]
        flags = [[math.isfinite(number) for number in column.tolist()] for column in columns]
        if not all(flags[len(self.feature_grads)]):  # a norm may overflow although the row is finite
            flags[len(self.feature_grads)] = self.jacobian.finite_tasks()
        return [task for task in range(len(self.keys)) if all(column[task] for column in flags)]


def make_step_inputs(
    members: Sequence[Member],
    jacobian: Rows,
    losses: Tensor | Sequence[float] | None,
    *,
    domains: Sequence[str] | None = None,
    slots: Sequence[int] | None = None,
    features: Sequence[Tensor] = (),
    feature_grads: Sequence[Tensor] = (),
    targets: Tensor | None = None,
    kernel_traces: Tensor | Sequence[float] | KernelTraces | None = None,
    create_graph: bool = False,
) -> StepInputs:
    """Validate the inputs of a step, against each other and against the members.

    Raises:
        OptionError, DataError, NotDifferentiableError.
    """
    rows = as_jacobian(jacobian)
    tasks = rows.tasks
    for member in members:
        if create_graph and (member.spec is None or "differentiable" not in member.spec.traits):
            raise NotDifferentiableError(
                f"{member} is not differentiable, but create_graph=True requires it. "
                "Use create_graph=False, or a homogenizer with the trait 'differentiable'."
            )
        if member.spec is not None and tasks > (member.spec.max_tasks or tasks):
            raise OptionError(
                f"{member} supports at most {member.spec.max_tasks} tasks, because more would need too much memory or "
                f"time; got {tasks}."
            )
    for name, tensors in (("features", features), ("feature_grads", feature_grads)):
        for tensor in tensors:
            if tensor.dim() < 2 or len(tensor) != tasks:
                raise DataError(
                    f"the first dimension of `{name}` must be {tasks}, the number of rows; got shape "
                    f"{tuple(tensor.shape)}."
                )
    if targets is not None and (targets.dim() == 0 or len(targets) != tasks):
        raise DataError(
            f"the first dimension of `targets` must be {tasks}, the number of rows; got shape {tuple(targets.shape)}."
        )
    keys = task_keys(range(tasks) if slots is None else tuple(slots), tuple(domains or ()))
    if losses is not None:
        losses = _check_losses(losses, tasks)
    if not create_graph:
        rows = rows.detach() if rows.requires_grad else rows
        losses = None if losses is None else losses.detach()
        if features or feature_grads:
            features, feature_grads = [x.detach() for x in features], [x.detach() for x in feature_grads]
    if kernel_traces is not None and not callable(kernel_traces):
        kernel_traces = _given_traces(kernel_traces, tasks)
    return StepInputs(rows, keys, losses, features, feature_grads, targets, kernel_traces)


def select_traces(kernel_traces: KernelTraces | None, tasks: Sequence[int]) -> KernelTraces | None:
    """Return the traces of some of the tasks."""
    return None if kernel_traces is None else lambda probes, generator: kernel_traces(probes, generator)[list(tasks)]


def _given_traces(values: Tensor | Sequence[float], tasks: int) -> KernelTraces:
    """Return traces that the caller computed."""
    traces = values.cpu() if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.float64)
    if traces.shape != (tasks,) or traces.is_complex() or bool((traces < 0).any()):
        raise OptionError(
            f"`kernel_traces` must have shape [{tasks}], one number ≥ 0 per task; got {tuple(traces.shape)}"
            f"{f', {traces.tolist()}' if traces.numel() <= 8 else ''}."
        )
    return lambda probes, generator: traces.to(torch.float64)


def _check_losses(losses: Tensor | Sequence[float], tasks: int) -> Tensor:
    """Return the losses as a float64 tensor `[tasks]`."""
    if not isinstance(losses, Tensor):
        try:
            scalars = [x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64) for x in losses]
            losses = torch.stack([loss if loss.is_complex() else loss.double() for loss in scalars])
        except (TypeError, ValueError, RuntimeError) as cause:
            raise OptionError(f"`losses` must contain one number per task; got {losses!r}.") from cause
    if losses.shape != (tasks,):
        raise OptionError(f"`losses` must have shape [{tasks}], one per task; got {tuple(losses.shape)}.")
    if losses.is_complex():
        raise OptionError(f"`losses` must be real numbers; got {losses.dtype}.")
    return losses.to(torch.float64)


def features_at_stages(name: str, values: Tensor | Sequence[Tensor], transforms: int) -> Sequence[Tensor]:
    """Return the tensors before and after each `transform` stage; one tensor suffices for at most one such stage."""
    count = transforms + 1
    if isinstance(values, Tensor) and count <= 2:  # the input of the one transform, or the gradients w.r.t. its output
        return (values,) * count
    if isinstance(values, Tensor) or (values and len(values) != count):
        found = "a tensor" if isinstance(values, Tensor) else f"{len(values)} tensors"
        raise OptionError(
            f"`{name}` must be a sequence of {count} tensors, one before and one after each of the {count - 1} "
            f"homogenizers that transform features; got {found}. Pass the tensors that transform() returned, and the "
            "gradients of the losses w.r.t. each."
        )
    return values
