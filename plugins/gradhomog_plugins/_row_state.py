"""State of one row per key: one tensor per parameter and key, with the rules of `gradhomog.keyed`."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradhomog import Jacobian, keyed, to_device
from gradhomog_plugins._columns import wide_dtype

RowState = dict[str, dict[str, Tensor]]
"""`{parameter: {key: tensor [*shape]}}`; for rows in one matrix, the parameter is `""`."""


def fitting(state: RowState, like: Mapping[str, Tensor]) -> RowState:
    """Return the state if it belongs to rows with the names and shapes of `like`, `[*shape]`; otherwise {}."""
    fits = state.keys() == like.keys() and all(
        saved.shape == like[name].shape for name, rows_by_key in state.items() for saved in rows_by_key.values()
    )
    return state if fits else {}


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


def cast_like(rows: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert rows to the dtypes of other rows."""
    return {name: value.to(other[name].dtype) for name, value in rows.items()}


def broadcast_per_task(numbers: Tensor, rows: Tensor) -> Tensor:
    """Return numbers `[tasks]` with dtype, device and number of dimensions of rows `[tasks, *shape]`, to broadcast."""
    return to_device(numbers, rows.device, rows.dtype).reshape(-1, *[1] * (rows.dim() - 1))
