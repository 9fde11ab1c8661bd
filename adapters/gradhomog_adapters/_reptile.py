"""The state of Reptile's inner loop: its minibatches, and the state of the inner optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torchopt
from torch import Tensor, nn

from gradhomog import OptionError
from gradhomog_adapters._gradients import detach_all
from gradhomog_adapters._inner_optimizer import InnerOptimizer
from gradhomog_adapters._network import SeededByStep

# Odd, and by the golden ratio far from small multiples of 2³², so that adjacent seeds have different streams.
SEED_STRIDE = 2654435761


class Minibatches(SeededByStep):
    """Positions `[steps, size]` of the examples of each inner step, a function of the seed and the meta-step number.

    Examples are shuffled, split into minibatches, and shuffled again when all are used; a minibatch can span two
    shuffles. All tasks of a meta-step use the same positions, so both engines do; the examples at a position differ.

    Args:
        size: examples in a minibatch, the option `inner_batch`.
        seed: seed of a separate generator, the option `seed`.
    """

    def __init__(self, size: int, seed: int) -> None:
        super().__init__(seed)
        self.size = size

    def training_positions(self, examples: int, steps: int) -> Tensor | None:
        """Positions for the next meta-step; None if a minibatch would contain all examples."""
        return self._positions(examples, steps, self.step)

    def test_positions(self, examples: int, steps: int) -> Tensor | None:
        """Positions of the first meta-step, so that predictions do not depend on the number of training steps."""
        return self._positions(examples, steps, 0)

    def _positions(self, examples: int, steps: int, number: int) -> Tensor | None:
        if self.size >= examples or not steps:
            return None
        generator = torch.Generator().manual_seed((self.seed * SEED_STRIDE + number) % 2**32)
        shuffles = -(-steps * self.size // examples)
        drawn = torch.cat([torch.randperm(examples, generator=generator) for _ in range(shuffles)])
        return drawn[: steps * self.size].view(steps, self.size)


class InnerOptimizerState(nn.Module):
    """Two states of the inner optimizer, after the previous meta-step and after the previous task of this meta-step.

    The first is stored in buffers.


    Args:
        inner: the inner optimizer.
        parameters: the parameters that it adapts, by name.

    Raises:
        OptionError: the optimizer has further state in a closure.
    """

    def __init__(self, inner: InnerOptimizer, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        if inner.has_hidden_state:
            raise OptionError(
                "`keep_state` requires an inner optimizer without hidden state; TorchOpt's momentum with dampening "
                "stores which call was the first. Use one without dampening."
            )
        self.names = list(parameters)
        leaves, self._structure = torchopt.pytree.tree_flatten(inner().init(detach_all(parameters)))
        self._count = len(leaves)
        for index, leaf in enumerate(leaves):
            self.register_buffer(f"leaf{index}", leaf.clone())
        self._current: list[Tensor] | None = None

    def restart(self) -> None:
        """Start a meta-step with the state after the last one."""
        self._current = None

    def current(self, parameters: dict[str, Tensor]) -> Any:
        """State for the next task of a meta-step. Raises as `committed`."""
        return self._tree(parameters, self._leaves() if self._current is None else self._current)

    def committed(self, parameters: dict[str, Tensor]) -> Any:
        """State after the last meta-step.

        Raises:
            OptionError: the adapted parameters are not those of the state.
        """
        return self._tree(parameters, self._leaves())

    def record_task(self, state: Any, checked: Sequence[Tensor]) -> None:
        """Store the state after a task, unless it or a tensor in `checked` is not finite."""
        before = self._leaves() if self._current is None else self._current
        after = [leaf.detach() for leaf in torchopt.pytree.tree_leaves(state)]
        finite = torch.stack([torch.isfinite(tensor).all() for tensor in (*after, *checked)]).all()
        self._current = [torch.where(finite, new, old) for new, old in zip(after, before, strict=True)]

    def commit(self) -> None:
        """Store the state after a meta-step, for the next one."""
        if self._current is not None:
            for index, leaf in enumerate(self._current):
                setattr(self, f"leaf{index}", leaf)
        self._current = None

    def _tree(self, parameters: dict[str, Tensor], leaves: list[Tensor]) -> Any:
        if list(parameters) != self.names:
            missing = ", ".join(sorted(set(self.names) ^ set(parameters)))
            raise OptionError(
                f"`keep_state` stores the state of all adapted parameters, but {missing} was frozen later. Freeze "
                "parameters before the learner is created."
            )
        return torchopt.pytree.tree_unflatten(self._structure, [leaf.clone() for leaf in leaves])

    def _leaves(self) -> list[Tensor]:
        return [getattr(self, f"leaf{index}") for index in range(self._count)]
