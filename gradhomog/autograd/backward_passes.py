"""The backward passes through one autograd graph, each of which must be independent of those before it."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from gradhomog.autograd.donated_buffers import DISABLE, check_saved_tensors
from gradhomog.autograd.recomputed_modules import RecomputedModules
from gradhomog.errors import OptionError

_REASONS = {
    "donated buffers": "the backward of a torch.compile'd function was compiled for one: it overwrites its saved "
    f"tensors. {DISABLE} Setting donated_buffer=False alone, as PyTorch's error advises, can give wrong gradients "
    "from PyTorch's caches.",
    "selective activation checkpoint": "a region under selective activation checkpointing can be differentiated once. "
    "Checkpoint without `context_fn`, or use a pipeline with one backward pass, or level='features' if only the shared "
    "part is checkpointed. Nothing was written.",
}
"""Reasons and remedies by a part of PyTorch's error about a second pass."""


class BackwardPasses:
    """The backward passes through one graph: of one loss each, or of a weighted sum, or of a part of the graph.

    Args:
        nodes: all nodes of the graph.
        compiled: those of compiled functions.
    """

    def __init__(self, nodes: Iterable[Any] = (), compiled: Iterable[Any] = ()) -> None:
        self.compiled = list(compiled)
        self._modules = RecomputedModules(nodes)
        self._number = 0

    def differentiate(
        self, outputs: Sequence[Any], inputs: Sequence[Any] | None, output_grads: Sequence[Tensor], *,
        retain_graph: bool, create_graph: bool = False,
    ) -> Sequence[Tensor | None]:  # fmt: skip
        """Return Σ over outputs of output_grad · ∂output/∂input, as `torch.autograd.grad` with `allow_unused=True`.

        `inputs`: None to add the gradients of all leaves to their `.grad`; nothing is then returned.

        Raises:
            OptionError: a part of the graph can be differentiated only once.
        """
        self._number += 1
        is_one = self._number == 1 and not retain_graph
        try:
            with (
                nullcontext() if is_one else self._modules.keep_state(),
                check_saved_tensors(self.compiled) if self.compiled and retain_graph else nullcontext(),
            ):
                if inputs is None:
                    torch.autograd.backward(outputs, output_grads, retain_graph=retain_graph)
                    return ()
                return torch.autograd.grad(
                    outputs, inputs, output_grads, retain_graph=retain_graph, create_graph=create_graph,
                    allow_unused=True,
                )  # fmt: skip
        except RuntimeError as error:
            reason = next((reason for part, reason in _REASONS.items() if part in str(error)), None)
            if reason is None:
                raise
            raise OptionError(f"the step requires several backward passes, but {reason}") from error
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            if self._number == 1:
                raise
            raise OptionError(
                f"the step requires several backward passes, but the code in the graph raised {error!r} in pass "
                f"{self._number}. If a custom autograd function can be differentiated only once, such as a checkpoint "
                "that frees its inputs, keep what it saves, or use torch.utils.checkpoint, a pipeline with one "
                "backward pass, or level='features'. Nothing was written."
            ) from error
