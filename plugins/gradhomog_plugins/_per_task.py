"""Options with one number per task: one for all, a list by slot, or a dict by domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradhomog import OptionError, Step


def numbers(
    option: str, value: float | Sequence[float] | Mapping[str, float], step: Step, default: float = 1.0
) -> Tensor:
    """Return the number of each task of a batch, float64 `[tasks]`.

    The entry `"*"` of a dict is for other domains; without it they have `default`. `option` is the name in errors:
    "stch: `ideal`".
    """
    if isinstance(value, Mapping):
        result = [value.get(domain, value.get("*", default)) for domain in step.by("domain")]
    elif isinstance(value, Sequence):
        slots = 1 + max(key.slot for key in step.keys)  # not step.tasks, which nonfinite="drop" reduces
        if slots > len(value):
            raise OptionError(
                f"{option} must hold one number per task; got {len(value)} for {slots} tasks. "
                "Give more numbers, or a dict by domain."
            )
        result = [value[key.slot] for key in step.keys]
    else:
        result = [value] * step.tasks
    return torch.tensor(result, dtype=torch.float64)
