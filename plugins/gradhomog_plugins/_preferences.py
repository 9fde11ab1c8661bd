"""A preference over tasks, and the weights of a scalarization whose derivatives may be negative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from annotated_types import Ge
from torch import Tensor

from gradhomog import OptionError, Step
from gradhomog_plugins import _per_task

Preference = Annotated[float, Ge(0)]
Preferences = Sequence[Preference] | Mapping[str, Preference] | None


def preferences(option: str, given: Preferences, step: Step) -> Tensor:
    """Return the preference of each task, divided by their sum, float64 `[tasks]`; equal for None.

    `option` is the name in errors: "stch: `weights`".

    Raises:
        OptionError: all preferences of the batch are zero.
    """
    numbers = _per_task.numbers(option, 1.0 if given is None else given, step)
    if not numbers.sum() > 0:
        raise OptionError(f"{option} must not all be zero in a batch; got {numbers.tolist()}.")
    return numbers / numbers.sum()


def nonnegative(derivatives: Tensor, otherwise: Tensor) -> Tensor:
    """Return the derivatives with negative ones replaced by zero, `[tasks]`; `otherwise` if none is positive."""
    return derivatives.clamp_min(0) if bool((derivatives > 0).any()) else otherwise
