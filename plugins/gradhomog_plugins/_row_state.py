"""State of one row per key: one tensor per parameter and key, with the rules of `gradhomog.keyed`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradhomog import Jacobian, Step, keyed, to_device
from gradhomog_plugins._columns import wide_dtype

RowState = dict[str, dict[str, Tensor]]
"""`{parameter: {key: tensor [*shape]}}`; for rows in one matrix, the parameter is `""`."""


def fitting(step: Step, rows: RowState, *by_key: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the states if `rows` has the names and shapes of the step's parameters; otherwise as many empty ones."""
    like = step.jacobian.row_like()
    fits = rows.keys() == like.keys() and all(
        saved.shape == like[name].shape for name, saved_by_key in rows.items() for saved in saved_by_key.values()
    )
    return (rows, *by_key) if fits else ({},) * (1 + len(by_key))


def read(state: Mapping[str, Tensor], keys: Sequence[str], rows: Tensor, initial: float = 0.0) -> Tensor:
    """Return the saved rows of a batch's tasks for one parameter, `[tasks, *shape]`, `initial` for a new key.

    They have the device and the dtype of `rows`, or float32 for half precision, which would lose small changes.
    """
    return keyed.read_tensors(state, keys, torch.full_like(rows[0], initial, dtype=wide_dtype(rows)))


def moved(state: RowState, keys: Sequence[str], jacobian: Jacobian, shares: Tensor) -> dict[str, Tensor]:
    """Return s + share · (g − s), `[tasks, *shape]` by parameter, for the rows g of a batch and their saved s."""
    averages = {}
    for name, row in jacobian.by_parameter():
        old = read(state.get(name, {}), keys, row)
        averages[name] = torch.lerp(old, row.to(old.dtype), broadcast_per_task(shares, old))
    return averages


def write(state: RowState, keys: Sequence[str], rows: Mapping[str, Tensor]) -> RowState:
    """Return the state with new rows `[tasks, *shape]` for the keys of a batch, the mean of the tasks of one key.

    They are views of `rows`, without a copy, if the batch has every key of the state once; do not change `rows` then.
    """
    found = {}
    for name, value in rows.items():
        saved = state.get(name, {})
        if len(set(keys)) == len(keys) and saved.keys() <= set(keys):
            found[name] = dict(zip(keys, value.detach().unbind(), strict=True))
        else:  # a view would keep the whole batch in memory
            found[name] = keyed.write_tensors(saved, keys, value)
    return found


def in_jacobian(step: Step, rows: Mapping[str, Tensor]) -> Jacobian:
    """Return rows `[tasks, *shape]` by parameter as a Jacobian with the dtypes of the step's."""
    like = step.jacobian.row_like()
    return step.jacobian.replace({name: value.to(like[name].dtype) for name, value in rows.items()})


def broadcast_per_task(numbers: Tensor, rows: Tensor) -> Tensor:
    """Return numbers `[tasks]` with dtype, device and number of dimensions of rows `[tasks, *shape]`, to broadcast."""
    return to_device(numbers, rows.device, rows.dtype).reshape(-1, *[1] * (rows.dim() - 1))
