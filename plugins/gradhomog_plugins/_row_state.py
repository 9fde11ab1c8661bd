"""State of one row per key: one tensor per parameter and key, with the rules of `gradhomog.keyed`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradhomog import keyed, to_device
from gradhomog_plugins._dtypes import wide_dtype

RowState = dict[str, dict[str, Tensor]]
"""`{parameter: {key: tensor [*shape]}}`; for rows in one matrix, the parameter is `""`."""


def fits(state: Mapping[str, Mapping[str, Tensor]], rows: Mapping[str, Tensor]) -> bool:
    """True if the state belongs to rows with these names and shapes `[tasks, *shape]`."""
    if state.keys() != rows.keys():
        return False
    return all(
        saved.shape == rows[name].shape[1:] for name, rows_by_key in state.items() for saved in rows_by_key.values()
    )


def read(
    state: Mapping[str, Mapping[str, Tensor]], keys: Sequence[str], rows: Mapping[str, Tensor], initial: float = 0.0
) -> dict[str, Tensor]:
    """Return the saved rows of a batch's tasks, `[tasks, *shape]` by parameter, filled with `initial` for a new key.

    They have the device and the dtype of `rows`, or float32 for half precision, which would lose small changes.
    """
    return {
        name: keyed.read_tensors(state.get(name, {}), keys, torch.full_like(value[0], initial, dtype=wide_dtype(value)))
        for name, value in rows.items()
    }


def write(
    state: Mapping[str, Mapping[str, Tensor]], keys: Sequence[str], rows: Mapping[str, Tensor]
) -> dict[str, dict[str, Tensor]]:
    """Return the state with new rows `[tasks, *shape]` for the keys of a batch, the mean of the tasks of one key."""
    return {name: keyed.write_tensors(state.get(name, {}), keys, value) for name, value in rows.items()}


def cast_like(rows: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert rows to the dtypes of other rows."""
    return {name: value.to(other[name].dtype) for name, value in rows.items()}


def broadcast_per_task(numbers: Tensor, rows: Tensor) -> Tensor:
    """Return numbers `[tasks]` with dtype, device and number of dimensions of rows `[tasks, *shape]`, to broadcast."""
    return to_device(numbers, rows.device, rows.dtype).reshape(-1, *[1] * (rows.dim() - 1))
