"""Create the record of a step from what a caller of `Pipeline.combine` passes; raise for inputs that do not match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradhomog.errors import DataError, OptionError
from gradhomog.rows import Jacobian, as_jacobian
from gradhomog.step.step import KernelTraces, Step
from gradhomog.step.task_key import task_keys

Rows = Tensor | Mapping[str, Tensor] | Jacobian


def make_step(
    jacobian: Rows, losses: Tensor | Sequence[float] | None = None, *, domains: Sequence[str] | None = None,
    slots: Sequence[int] | None = None, features: Sequence[Tensor] = (), feature_grads: Sequence[Tensor] = (),
    targets: Tensor | None = None, kernel_traces: Tensor | Sequence[float] | KernelTraces | None = None,
) -> Step:  # fmt: skip
    """Return the record of a step.

    Args:
        domains, targets, kernel_traces: as in `Pipeline.combine`.
        slots: positions of the tasks in the full batch, if some tasks are absent from this step.
        features, feature_grads: `[tasks, queries, features]` before and after each `transform` stage.

    Raises:
        OptionError, DataError.
    """
    rows = as_jacobian(jacobian)
    tasks = rows.tasks
    labels = [] if targets is None else [targets]
    for name, tensors in (("features", features), ("feature_grads", feature_grads), ("targets", labels)):
        for tensor in tensors:
            if tensor.dim() < (1 if name == "targets" else 2) or len(tensor) != tasks:
                raise DataError(
                    f"the first dimension of `{name}` must be {tasks}, the number of rows; got shape "
                    f"{tuple(tensor.shape)}."
                )
    keys = task_keys(range(tasks) if slots is None else tuple(slots), tuple(domains or ()))
    if losses is not None:
        losses = _check_losses(losses, tasks)
    if kernel_traces is not None and not callable(kernel_traces):
        kernel_traces = _given_traces(kernel_traces, tasks)
    return Step(keys, rows, losses, features, feature_grads, targets, kernel_traces)


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
