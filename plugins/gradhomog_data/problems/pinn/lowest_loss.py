"""The state of a network with the lowest training loss so far."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn


class LowestLoss:
    """A copy of a network at the step with the lowest sum of the tasks' losses on the batch of the step.

    A task whose loss is not computed in a step counts with its last value. Nothing is copied before every task has
    one; until then the copy is the initial network.

    Attributes:
        network: the copy.
        sum: its sum of losses.
        step: the number of optimizer steps before the copy; None before the first copy.
    """

    def __init__(self, network: nn.Module, tasks: Sequence[str]) -> None:
        self.network, self._source = copy.deepcopy(network), network
        self._latest = dict.fromkeys(tasks, math.inf)
        self.sum = math.inf
        self.step: int | None = None

    @torch.no_grad()
    def update(self, losses: Mapping[str, float], step: int) -> None:
        """Copy the network, before the optimizer changes it in step `step`, if the sum of its losses is the lowest."""
        self._latest.update(losses)
        if (total := sum(self._latest.values())) < self.sum:
            self.sum, self.step = total, step
            for kept, current in zip(self.network.parameters(), self._source.parameters(), strict=True):
                kept.copy_(current)

    def state_dict(self) -> dict[str, Any]:
        latest = dict(self._latest)
        return {"network": self.network.state_dict(), "latest": latest, "sum": self.sum, "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self._latest, self.sum = dict(state["latest"]), state["sum"]
        self.step = state.get("step")  # checkpoints of 0.2.0 have none
