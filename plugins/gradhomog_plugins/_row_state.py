"""Rows kept from step to step: one tensor per parameter and key, by the rule of `gradhomog.keyed`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradhomog import keyed

RowState = dict[str, dict[str, Tensor]]
"""`{parameter: {key: tensor [*shape]}}`; of rows in one matrix, the parameter is `""`."""


def fits(state: Mapping[str, Mapping[str, Tensor]], rows: Mapping[str, Tensor]) -> bool:
    """True if the state belongs to rows with these names and shapes `[tasks, *shape]`."""
    if state.keys() != rows.keys():
        return False
    return all(kept.shape == rows[name].shape[1:] for name, held in state.items() for kept in held.values())


def read(
    state: Mapping[str, Mapping[str, Tensor]], keys: Sequence[str], rows: Mapping[str, Tensor], initial: float = 0.0
) -> dict[str, Tensor]:
    """The kept rows of a batch's tasks, `[tasks, *shape]` by parameter; `initial` everywhere for a new key.

    Of the device and, from float32 up, the dtype of `rows`: half precision would lose small changes.
    """
    return {
        name: keyed.read_tensors(state.get(name, {}), keys, torch.full_like(value[0], initial, dtype=wide(value)))
        for name, value in rows.items()
    }


def write(
    state: Mapping[str, Mapping[str, Tensor]], keys: Sequence[str], rows: Mapping[str, Tensor]
) -> dict[str, dict[str, Tensor]]:
    """The state with new rows `[tasks, *shape]` for the keys of a batch; the mean of the tasks of one key."""
    return {name: keyed.write_tensors(state.get(name, {}), keys, value) for name, value in rows.items()}


def wide(value: Tensor) -> torch.dtype:
    """The dtype of a tensor, float32 for half precision."""
    return torch.promote_types(value.dtype, torch.float32)


def like(rows: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rows in the dtypes of others."""
    return {name: value.to(given[name].dtype) for name, value in rows.items()}


def per_task(numbers: Tensor, rows: Tensor) -> Tensor:
    """Numbers `[tasks]` in the dtype and on the device of rows `[tasks, *shape]`, to be broadcast with them."""
    return numbers.to(rows.device, rows.dtype).reshape(-1, *[1] * (rows.dim() - 1))
