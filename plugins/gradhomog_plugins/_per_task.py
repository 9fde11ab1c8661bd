"""Options with one number per task: one for all, a list by slot, or a dict by domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradhomog import OptionError, Step


def numbers(
    option: str, given: float | Sequence[float] | Mapping[str, float], step: Step, default: float = 1.0
) -> Tensor:
    """The number of each task of a batch, float64 `[tasks]`.

    A dict's entry `"*"` is for the domains that it does not name; `default` is theirs if it has no such entry.
    `option` is for the error: "stch: `ideal`".
    """
    if isinstance(given, Mapping):
        found = [given.get(domain, given.get("*", default)) for domain in step.by("domain")]
    elif isinstance(given, Sequence):
        slots = 1 + max(key.slot for key in step.keys)  # not step.tasks, which nonfinite="drop" reduces
        if slots > len(given):
            raise OptionError(
                f"{option} must hold one number per task; got {len(given)} for {slots} tasks. "
                "Give more, or a dict by domain."
            )
        found = [given[key.slot] for key in step.keys]
    else:
        found = [given] * step.tasks
    return torch.tensor(found, dtype=torch.float64)
