"""`RunningMeans`: means of logged values by name, over the batches since the last log."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor


class RunningMeans:
    """Weighted means of values by name. Tensors stay on their device until `pop`, which synchronizes once per log."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor | float] = {}
        self._weights: dict[str, float] = {}

    def add(self, name: str, value: Tensor | float, weight: float = 1.0) -> None:
        """Add a value to the mean of its name."""
        value = value.detach().double() if isinstance(value, Tensor) else value
        self._sums[name] = self._sums.get(name, 0.0) + weight * value
        self._weights[name] = self._weights.get(name, 0.0) + weight

    def pop(self, ranks: int = 1) -> dict[str, float]:
        """Return the means, and begin new ones; with several ranks those over the values of all, the same on each."""
        values = {name: (total, self._weights[name]) for name, total in _to_floats(self._sums).items()}
        self._sums, self._weights = {}, {}
        parts = [values] * ranks
        if ranks > 1:
            dist.all_gather_object(parts, values)  # names may differ: a task can be absent on a rank
        sums: dict[str, tuple[float, float]] = {}
        for part in parts:
            for name, (total, weight) in part.items():
                before = sums.get(name, (0.0, 0.0))
                sums[name] = before[0] + total, before[1] + weight
        return {name: total / weight for name, (total, weight) in sums.items()}


def _to_floats(values: Mapping[str, Tensor | float]) -> dict[str, float]:
    """Convert tensors of one element on any devices, by one copy to the CPU."""
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    device = next((tensor.device for tensor in tensors.values() if tensor.device.type != "cpu"), None)
    joined = torch.stack([tensor.to(device) for tensor in tensors.values()]).tolist() if tensors else []
    return {**values, **dict(zip(tensors, joined, strict=True))}
