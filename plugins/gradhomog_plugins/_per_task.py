"""Options with one value per task: one for all, a list by position, or a dict by name; preferences over tasks."""

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeVar

import torch
from annotated_types import Ge
from torch import Tensor

from gradhomog import OptionError, Step

T = TypeVar("T")
Preference = Annotated[float, Ge(0)]
Preferences = Sequence[Preference] | Mapping[str, Preference] | None


def numbers(
    option: str, value: float | Sequence[float] | Mapping[str, float], step: Step, default: float = 1.0
) -> Tensor:
    """Return the number of each task of a batch, float64 `[tasks]`.

    The entry `"*"` of a dict is for other names; without it they have `default`. `option` is the name in errors.
    """
    if isinstance(value, Mapping):
        result = entries(option, {"*": default, **value}, step)
    elif isinstance(value, Sequence):
        slots = 1 + max(key.slot for key in step.keys)  # not step.tasks, which nonfinite="drop" reduces
        if slots > len(value):
            raise OptionError(
                f"`{option}` must hold one number per task; got {len(value)} for {slots} tasks. "
                "Give more numbers, or a dict by name."
            )
        result = [value[key.slot] for key in step.keys]
    else:
        result = [value] * step.tasks
    return torch.tensor(result, dtype=torch.float64)


def entries(option: str, values: Mapping[str, T], step: Step) -> list[T]:
    """Return the entry of each task's name, or for other names the entry `"*"`.

    Raises:
        OptionError: tasks have no names, or a name has no entry.
    """
    named = bool(step.keys[0].domain) or set(values) == {"*"}
    missing = [name for name in step.names if name not in values and "*" not in values]
    if not named or missing:
        expected = ", ".join(sorted({*values} - {"*"}))
        found = f"{', '.join(missing)} in the batch" if named else "tasks without names"
        raise OptionError(
            f"`{option}` has entries for the tasks {expected}; got {found}. To name the tasks, pass losses in a dict, "
            "or `domains`; the entry '*' is for other names."
        )
    return [values[name] if name in values else values["*"] for name in step.names]


def preferences(option: str, given: Preferences, step: Step) -> Tensor:
    """Return the preference of each task, divided by their sum, float64 `[tasks]`; equal for None.

    Raises:
        OptionError: all preferences of the batch are zero.
    """
    found = numbers(option, 1.0 if given is None else given, step)
    if not found.sum() > 0:
        raise OptionError(f"`{option}` must not all be zero in a batch; got {found.tolist()}.")
    return found / found.sum()


def nonnegative(derivatives: Tensor, otherwise: Tensor) -> Tensor:
    """Return the derivatives with negative ones replaced by zero, `[tasks]`; `otherwise` if none is positive."""
    return derivatives.clamp_min(0) if bool((derivatives > 0).any()) else otherwise
