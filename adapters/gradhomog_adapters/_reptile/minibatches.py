"""Minibatches of the inner loop: drawn before a step, the same positions for all tasks, resumable."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from gradhomog import OptionError

# Odd, and by the golden ratio far from small multiples of 2³²: neighbouring seeds do not share their steps' streams.
SPREAD = 2654435761


class Minibatches(nn.Module):
    """Which examples each inner step runs on: positions `[steps, size]`, a function of the seed and the step's number.

    Shuffled, cut into minibatches, and shuffled again when used up; a minibatch may span two shuffles. All tasks of a
    meta-step share the positions, so the engines see the same; the examples at a position are each task's own draw.

    Args:
        size: examples in a minibatch, the option `inner_batch`.
        seed: of a generator of its own, the option of this name.

    Raises:
        OptionError: `size` is no integer ≥ 1, or `seed` none ≥ 0.
    """

    def __init__(self, size: int, seed: int) -> None:
        super().__init__()
        for name, value, least in (("inner_batch", size, 1), ("seed", seed, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise OptionError(f"`{name}` must be an integer of at least {least}; got {value!r}.")
        self.size, self.seed, self.step = size, seed, 0

    def while_training(self, examples: int, steps: int) -> Tensor | None:
        """Those of the meta-step that comes; None where a minibatch would hold all examples."""
        return self._positions(examples, steps, self.step)

    def at_meta_test(self, examples: int, steps: int) -> Tensor | None:
        """Always those of the first meta-step: a prediction does not depend on how many steps training has taken."""
        return self._positions(examples, steps, 0)

    def on_step_end(self) -> None:
        self.step += 1

    def _positions(self, examples: int, steps: int, number: int) -> Tensor | None:
        if self.size >= examples or not steps:
            return None
        generator = torch.Generator().manual_seed((self.seed * SPREAD + number) % 2**32)
        shuffles = -(-steps * self.size // examples)
        drawn = torch.cat([torch.randperm(examples, generator=generator) for _ in range(shuffles)])
        return drawn[: steps * self.size].view(steps, self.size)

    # A number, not a buffer: on an accelerator reading it would wait for the device.
    def get_extra_state(self) -> dict[str, int]:
        return {"step": self.step}

    def set_extra_state(self, state: Mapping[str, int]) -> None:
        self.step = state["step"]
