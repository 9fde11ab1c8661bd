"""`RunningMeans`: means of logged values by name, over the batches since the last log."""

from __future__ import annotations

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

    def pop(self) -> dict[str, float]:
        """Return the means, and begin new ones."""
        means = {name: float(total) / self._weights[name] for name, total in self._sums.items()}
        self._sums, self._weights = {}, {}
        return means
