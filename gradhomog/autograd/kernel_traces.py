"""Traces of the tangent kernels of the tasks' residuals: exact, or estimated by Hutchinson's method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradhomog.autograd.derivatives import backward_pass
from gradhomog.autograd.inputs import Residuals, TaskLosses
from gradhomog.autograd.loss_graph import LossGraph
from gradhomog.errors import OptionError
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.step import KernelTraces


def kernel_trace_function(residuals: Residuals, loss_graph: LossGraph, pipe: Pipeline) -> KernelTraces | None:
    """Return a function that computes the traces when a homogenizer reads them; None if no homogenizer reads them.

    Raises:
        OptionError: the residuals do not match the losses.
    """
    if "kernel_traces" not in pipe.requirements.statistics:
        return None
    present = _residuals_of_present_tasks(residuals, loss_graph.tasks)
    parameters = list(loss_graph.shared.values())
    return lambda probes, generator: torch.stack([
        kernel_trace(residual, parameters, probes, generator, loss_graph.compiled) for residual in present
    ])  # fmt: skip


def kernel_trace(
    residuals: Tensor, parameters: Sequence[Tensor], probes: int, generator: torch.Generator,
    compiled: Sequence[Any] = (),
) -> Tensor:  # fmt: skip
    """Return tr K / n = 1/n Σ_m ‖∂r_m/∂θ‖² of residuals `[n]`, with K_ml = ⟨∂r_m/∂θ, ∂r_l/∂θ⟩, as a float64 scalar.

    Exact for n ≤ probes: one pass for each residual. Otherwise the mean of ‖∂/∂θ Σ_m ε_m r_m‖² / n over `probes`
    vectors ε of random signs, whose expectation it is (Hutchinson 1989), by one pass for each vector. Its variance is
    2 Σ_{m≠l} K_ml² / (n² · probes). The graph is kept; the result has a graph if gradients are enabled. `compiled`: the
    nodes of compiled functions in the graph.
    """
    count = residuals.numel()
    if count <= probes:
        vectors, denominator = torch.eye(count, dtype=residuals.dtype, device=residuals.device), count
    else:
        signs = 2 * torch.randint(2, (probes, count), generator=generator) - 1
        vectors, denominator = signs.to(residuals), count * probes
    squares = []
    for vector in vectors:
        gradients = backward_pass(
            [residuals], parameters, [vector], retain_graph=True, create_graph=torch.is_grad_enabled(),
            compiled=compiled,
        )  # fmt: skip
        parts = [gradient.double().square().sum() for gradient in gradients if gradient is not None]
        squares.append(torch.stack(parts).sum() if parts else residuals.new_zeros((), dtype=torch.float64))
    return torch.stack(squares).sum() / denominator


def _residuals_of_present_tasks(residuals: Residuals, tasks: TaskLosses) -> list[Tensor]:
    """Return the residuals of the present tasks, one vector per task."""
    if isinstance(residuals, Tensor) or not isinstance(residuals, Sequence | Mapping):
        raise OptionError(
            "`residuals` must be a sequence or a dict with one tensor per task; got "
            f"{'one tensor' if isinstance(residuals, Tensor) else type(residuals).__name__}."
        )
    if isinstance(residuals, Mapping):
        if tasks.names is None or not set(residuals) <= set(tasks.names):
            raise OptionError(
                f"`residuals` must have the names of the losses ({', '.join(tasks.names or ()) or 'which have none'}); "
                f"got {', '.join(map(str, residuals)) or 'none'}. Pass both as dicts with the same keys."
            )
        entries = [residuals.get(name) for name in tasks.names]
    else:
        entries = list(residuals)
    if len(entries) != tasks.tasks:
        raise OptionError(f"`residuals` must have one tensor for each of the {tasks.tasks} losses; got {len(entries)}.")
    present = []
    for index, slot in enumerate(tasks.slots):
        residual = entries[slot]
        if not isinstance(residual, Tensor) or not residual.is_floating_point() or not residual.requires_grad:
            found = f"{residual.dtype} without a graph" if isinstance(residual, Tensor) else type(residual).__name__
            raise OptionError(
                f"the residuals of task {tasks.label(index)} must be a floating-point tensor with a graph; got "
                f"{found}. Pass the tensor whose mean square is the loss, before it is squared, without detach."
            )
        if residual.numel() == 0:
            raise OptionError(f"the residuals of task {tasks.label(index)} must not be empty.")
        with torch.enable_grad():  # flatten must be part of the graph, also if the caller has disabled gradients
            present.append(residual.flatten())
    return present
