"""Minibatches of the inner loop: drawn before each step, with the same positions for all tasks, resumable."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

# Odd, and by the golden ratio far from small multiples of 2³², so that adjacent seeds have different streams.
SEED_STRIDE = 2654435761


class Minibatches(nn.Module):
    """Positions `[steps, size]` of the examples of each inner step, a function of the seed and the meta-step number.

    Examples are shuffled, split into minibatches, and shuffled again when all are used; a minibatch can span two
    shuffles. All tasks of a meta-step use the same positions, so both engines do; the examples at a position differ.

    Args:
        size: examples in a minibatch, the option `inner_batch`.
        seed: seed of a separate generator, the option `seed`.
    """

    def __init__(self, size: int, seed: int) -> None:
        super().__init__()
        self.size, self.seed, self.step = size, seed, 0

    def training_positions(self, examples: int, steps: int) -> Tensor | None:
        """Positions for the next meta-step; None if a minibatch would contain all examples."""
        return self._positions(examples, steps, self.step)

    def test_positions(self, examples: int, steps: int) -> Tensor | None:
        """Positions of the first meta-step, so that predictions do not depend on the number of training steps."""
        return self._positions(examples, steps, 0)

    def on_step_end(self) -> None:
        self.step += 1

    def _positions(self, examples: int, steps: int, number: int) -> Tensor | None:
        if self.size >= examples or not steps:
            return None
        generator = torch.Generator().manual_seed((self.seed * SEED_STRIDE + number) % 2**32)
        shuffles = -(-steps * self.size // examples)
        drawn = torch.cat([torch.randperm(examples, generator=generator) for _ in range(shuffles)])
        return drawn[: steps * self.size].view(steps, self.size)

    # A Python number, because reading a buffer synchronizes with the device.
    def get_extra_state(self) -> dict[str, int]:
        return {"step": self.step}

    def set_extra_state(self, state: Mapping[str, int]) -> None:
        self.step = state["step"]
