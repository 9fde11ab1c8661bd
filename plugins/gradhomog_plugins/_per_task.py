"""Options with one value per task: one for all, a list by position, or a dict by name; preferences over tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    require_one(option, found)
    return found / found.sum()


def require_one(option: str, found: Tensor) -> None:
    """Raise an OptionError if the weights of all tasks in a batch are zero."""
    if not found.sum() > 0:
        raise OptionError(f"`{option}` must not all be zero in a batch; got {found.tolist()}.")


def relative_weights(weights: Preferences, step: Step) -> Tensor:
    """Return w_i / mean_j w_j, float64 `[tasks]`, over the tasks of a step, absent ones and other names in the dict.

    So the ratio of two tasks' weights does not depend on the tasks in the step. Ones for None.
    """
    found = known_weights(weights, step)
    return divide_by_mean(found, weights, [*step.names, *step.absent_names])[: step.tasks]


def known_weights(weights: Preferences, step: Step) -> Tensor:
    """Return the weights of the tasks of a step and then of the absent ones, float64 `[tasks + absent]`."""
    whole = replace(step, keys=(*step.keys, *step.absent))
    return numbers("weights", 1.0 if weights is None else weights, whole)


def divide_by_mean(found: Tensor, weights: Preferences | str, names: Sequence[str]) -> Tensor:
    """Return the weights of these tasks divided by the mean of them and of other names in a dict, `[tasks]`.

    Raises:
        OptionError: all are zero.
    """
    others = other_weights(weights, names)
    total = found.sum() + sum(others)
    if not total > 0:
        raise OptionError(f"`weights` must not all be zero; got {found.tolist()}.")
    return (len(found) + len(others)) * found / total


def other_weights(weights: Preferences | str, names: Sequence[str]) -> list[float]:
    """Return the weights that a dict has for other names."""
    given = weights if isinstance(weights, Mapping) else {}
    return [weight for name, weight in given.items() if name not in (*names, "*")]


def nonnegative(derivatives: Tensor, otherwise: Tensor) -> Tensor:
    """Return the derivatives with negative ones replaced by zero, `[tasks]`; `otherwise` if none is positive."""
    return derivatives.clamp_min(0) if bool((derivatives > 0).any()) else otherwise
