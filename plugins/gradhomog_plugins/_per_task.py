"""One number per task, as an option gives it: one for all, a list by slot, or a dict by domain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradhomog import Evidence, OptionError

PerTask = float | Sequence[float] | Mapping[str, float]


def check(option: str, given: PerTask, least: float = -math.inf) -> None:
    """Raise unless all numbers are finite and at least `least`; `option` as in "stch: `ideal`"."""
    listed = given.values() if isinstance(given, Mapping) else given if isinstance(given, Sequence) else [given]
    for number in listed:
        if not (least <= number < math.inf and number > -math.inf):
            bound = "" if least == -math.inf else f" and at least {least:g}"
            raise OptionError(f"{option} must be finite{bound}; got {number!r}.")


def of_batch(option: str, given: PerTask, evidence: Evidence, otherwise: float) -> Tensor:
    """The number of each task of a batch, float64 `[tasks]`.

    A dict's entry `"*"` is for the domains that it does not name, and `otherwise` for these where it has no such entry.
    """
    if isinstance(given, Mapping):
        found = [float(given.get(domain, given.get("*", otherwise))) for domain in evidence.by("domain")]
    elif isinstance(given, Sequence):
        if (slots := 1 + max(key.slot for key in evidence.keys)) > len(given):
            raise OptionError(
                f"{option} must hold one number per task; got {len(given)} for {slots} tasks or more. "
                "Give more, or a dict by domain."
            )
        found = [float(given[key.slot]) for key in evidence.keys]
    else:
        return torch.full((evidence.tasks,), float(given), dtype=torch.float64)
    return torch.tensor(found, dtype=torch.float64)
