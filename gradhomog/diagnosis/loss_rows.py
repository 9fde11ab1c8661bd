"""The rows of several losses, without effect on `.grad` and on the graph."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradhomog.autograd.derivatives import DirectDerivatives
from gradhomog.autograd.inputs import Losses, Parameters
from gradhomog.autograd.loss_graph import LossGraph, find_graph
from gradhomog.autograd.row_source import require_used


def loss_rows(losses: Losses, parameters: Parameters | None = None) -> tuple[dict[str, Tensor], LossGraph]:
    """Return the rows `[tasks, *shape]` of the present tasks by parameter, and these tasks with the parameters.

    The graph of the losses is kept, so that a training step can follow.

    Args:
        losses, parameters: as in `gradhomog.backward`.

    Raises:
        OptionError: as in `gradhomog.backward`.
    """
    found = find_graph(losses, parameters, None)
    tasks = len(found.tasks.losses)
    graph = replace(found, unshared_leaves=[()] * tasks)
    rows = DirectDerivatives(graph, [1.0] * tasks, retain_graph=True).rows()
    unused = [name for name, gradients in rows.items() if all(gradient is None for gradient in gradients)]
    require_used(found.shared, unused)
    stacked = {
        name: torch.stack([torch.zeros_like(like, requires_grad=False) if row is None else row for row in rows[name]])
        for name, like in found.shared.items()
    }
    return stacked, found
