"""State of homogenizers by key: values that belong to a task slot or a domain and persist between steps.

A homogenizer keeps this state in a dict from key to value and passes it to these functions in `update`; they return a
new dict. All of them follow the same rules:

* a new key starts at the initial value;
* a key that is absent from the batch keeps its value;
* a key that occurs several times is updated once, with the *mean* of its tasks' values.

Therefore the order of two tasks with the same key has no effect, and a task that occurs twice counts once. Values are
numbers, which are stored as Python floats and computed in float64, or tensors of one shape.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from annotated_types import Len
from torch import Tensor

# The published constants of Adam (Kingma and Ba 2015). EPSILON is absolute: gradients should be dimensionless.
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8

Moments = Annotated[list[float], Len(4, 4)]
"""State of Adam for one key: value, first moment, second moment, number of steps."""


def mean(keys: Sequence[str], values: Tensor) -> dict[str, Tensor]:
    """Return the mean of `values` `[tasks, ...]` over the tasks of each key, in the order of first occurrence."""
    if len(set(keys)) == len(keys):
        return dict(zip(keys, values.unbind(), strict=True))
    places: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return {key: values[index].mean(0) if len(index) > 1 else values[index[0]] for key, index in places.items()}


def mean_numbers(keys: Sequence[str], values: Tensor | Sequence[float]) -> dict[str, float]:
    """Return the mean of numbers `[tasks]` over the tasks of each key, as floats."""
    numbers: Sequence[float] = values.tolist() if isinstance(values, Tensor) else values
    if len(set(keys)) == len(keys):
        return dict(zip(keys, map(float, numbers), strict=True))
    groups: dict[str, list[float]] = {}
    for key, number in zip(keys, numbers, strict=True):
        groups.setdefault(key, []).append(number)
    # fsum: the result does not depend on the order of the tasks, to the last bit.
    return {key: math.fsum(group) / len(group) for key, group in groups.items()}


def read(state: Mapping[str, float], keys: Sequence[str], initial: float) -> Tensor:
    """Return the numbers of a batch's tasks, float64 `[tasks]`; `initial` for a new key."""
    return torch.tensor([state.get(key, initial) for key in keys], dtype=torch.float64)


def write(state: Mapping[str, float], keys: Sequence[str], values: Tensor | Sequence[float]) -> dict[str, float]:
    """Return the state with new numbers `[tasks]` for the keys of a batch.

    >>> write({"a": 1.0, "b": 2.0}, ["a", "c", "a"], [3.0, 4.0, 5.0])
    {'a': 4.0, 'b': 2.0, 'c': 4.0}
    """
    return {**state, **mean_numbers(keys, values)}


def ema(
    state: Mapping[str, float], keys: Sequence[str], values: Tensor | Sequence[float], decay: float
) -> dict[str, float]:
    """Exponential moving averages of numbers: s ← decay · s + (1 − decay) · v; a new key starts at its first value.

    >>> ema({"a": 1.0}, ["a", "b"], torch.tensor([3.0, 5.0]), decay=0.5)
    {'a': 2.0, 'b': 5.0}
    """
    means = mean_numbers(keys, values)
    return {**state, **{key: decay * state.get(key, value) + (1 - decay) * value for key, value in means.items()}}


def read_tensors(state: Mapping[str, Tensor], keys: Sequence[str], initial: Tensor) -> Tensor:
    """Return the tensors of a batch's tasks, `[tasks, *shape]`; `initial` `[*shape]` for a new key."""
    return torch.stack([state[key].to(initial) if key in state else initial for key in keys])


def write_tensors(state: Mapping[str, Tensor], keys: Sequence[str], values: Tensor) -> dict[str, Tensor]:
    """Return the state with new tensors `[tasks, *shape]` for the keys of a batch: detached copies."""
    return {**state, **{key: value.detach().clone() for key, value in mean(keys, values).items()}}


def values(state: Mapping[str, Moments], keys: Sequence[str], initial: float = 0.0) -> Tensor:
    """Return the values of Adam states, float64 `[tasks]`; `initial` for a new key."""
    return torch.tensor([state[key][0] if key in state else initial for key in keys], dtype=torch.float64)


def adam(
    state: Mapping[str, Moments],
    keys: Sequence[str],
    gradients: Tensor | Sequence[float],
    lr: float,
    *,
    initial: float = 0.0,
    weight_decay: float = 0.0,
    bound: float = math.inf,
) -> dict[str, Moments]:
    """One step of Adam for the number of each key in the batch.

    Args:
        state: the state of each key; a new key starts at `initial` with moments of zero.
        gradients: `[tasks]`, averaged over the tasks of a key.
        weight_decay: factor of the value that is added to the gradient.
        bound: values are clipped to [−bound, bound].

    Source: Kingma and Ba 2015, arXiv 1412.6980, algorithm 1.
    """
    updated = {}
    for key, gradient in mean_numbers(keys, gradients).items():
        value, first, second, steps = state.get(key, (initial, 0.0, 0.0, 0.0))
        gradient, steps = gradient + weight_decay * value, steps + 1
        first = BETA_1 * first + (1 - BETA_1) * gradient
        second = BETA_2 * second + (1 - BETA_2) * gradient * gradient
        change = first / (1 - BETA_1**steps) / (math.sqrt(second / (1 - BETA_2**steps)) + EPSILON)
        updated[key] = [min(max(value - lr * change, -bound), bound), first, second, steps]
    return {**state, **updated}
