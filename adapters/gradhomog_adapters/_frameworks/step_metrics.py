"""Numbers of one step by name, for the loggers of frameworks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations

import torch
from torch import Tensor

from gradhomog import Homogenization

METRICS = ("loss", "weight", "norm", "cosine", "min_cosine")


def step_metrics(
    losses: Mapping[str, Tensor | None], step: Homogenization, metrics: Collection[str]
) -> dict[str, Tensor]:
    """Return `loss/A`, `weight/A`, `norm/A`, `cosine/A-B` and `cosine/min`, each if its kind is one of `metrics`.

    Weights, norms and cosines are those of the tasks in the step, and only those that the step has computed.
    """
    found: dict[str, Tensor] = {}
    if "loss" in metrics:
        found.update({f"loss/{name}": loss.detach() for name, loss in losses.items() if loss is not None})
    names = [list(losses)[slot] for slot in step.tasks]
    for kind, values in (("weight", step.weights), ("norm", step.norms)):
        if kind in metrics and values is not None:
            found.update({f"{kind}/{name}": value for name, value in zip(names, values.unbind(), strict=True)})
    if step.cosines is not None and len(names) > 1:
        first, second = torch.triu_indices(len(names), len(names), 1)
        cosines = step.cosines[first, second]
        if "cosine" in metrics:
            pairs = [f"cosine/{one}-{other}" for one, other in combinations(names, 2)]
            found.update(zip(pairs, cosines.unbind(), strict=True))
        if "min_cosine" in metrics:
            found["cosine/min"] = cosines.min()
    return found
