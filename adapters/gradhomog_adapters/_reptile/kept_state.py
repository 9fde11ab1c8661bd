"""The state of an inner optimizer that goes on from task to task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torchopt
from torch import Tensor, nn

from gradhomog import OptionError
from gradhomog_adapters._inner_optimizer import InnerOptimizer
from gradhomog_adapters._rows.gradients import constants


class KeptState(nn.Module):
    """Where the inner optimizer stands: as the last meta-step left it (buffers, which are saved), and after the task
    before within a meta-step.

    Args:
        inner: the inner optimizer.
        parameters: what it adapts, by name.

    Raises:
        OptionError: an optimizer that remembers something outside its state.
    """

    def __init__(self, inner: InnerOptimizer, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        if inner.remembers:
            raise OptionError(
                "`keep_state` needs an inner optimizer whose state is all that it remembers; TorchOpt's momentum with "
                "dampening also remembers which call was the first. Use one without dampening."
            )
        self.names = list(parameters)
        leaves, self._structure = torchopt.pytree.tree_flatten(inner().init(constants(parameters)))
        self._count = len(leaves)
        for index, leaf in enumerate(leaves):
            self.register_buffer(f"leaf{index}", leaf.clone())
        self._running: list[Tensor] | None = None

    def restart(self) -> None:
        """Begin a meta-step where the last one ended."""
        self._running = None

    def running(self, parameters: dict[str, Tensor]) -> Any:
        """What the next task of a meta-step begins with; raises as `committed`."""
        return self._tree(parameters, self._leaves() if self._running is None else self._running)

    def committed(self, parameters: dict[str, Tensor]) -> Any:
        """What the last meta-step left.

        Raises:
            OptionError: other parameters are adapted than the state is of.
        """
        return self._tree(parameters, self._leaves())

    def after_task(self, state: Any, judged: Sequence[Tensor]) -> None:
        """Where a task ended; one that left NaN or infinity, here or in what it is judged by, leaves no trace."""
        before = self._leaves() if self._running is None else self._running
        after = [leaf.detach() for leaf in torchopt.pytree.tree_leaves(state)]
        finite = torch.stack([torch.isfinite(tensor).all() for tensor in (*after, *judged)]).all()
        self._running = [torch.where(finite, new, old) for new, old in zip(after, before, strict=True)]

    def after_step(self) -> None:
        """A meta-step was taken: this is where the next one begins."""
        if self._running is not None:
            for index, leaf in enumerate(self._running):
                setattr(self, f"leaf{index}", leaf)
        self._running = None

    def _tree(self, parameters: dict[str, Tensor], leaves: list[Tensor]) -> Any:
        if list(parameters) != self.names:
            missing = ", ".join(sorted(set(self.names) ^ set(parameters)))
            raise OptionError(
                f"`keep_state` holds the state of all adapted parameters, but {missing} was frozen since. Freeze what "
                "is not to be learnt before the learner is made."
            )
        return torchopt.pytree.tree_unflatten(self._structure, [leaf.clone() for leaf in leaves])

    def _leaves(self) -> list[Tensor]:
        return [getattr(self, f"leaf{index}") for index in range(self._count)]
