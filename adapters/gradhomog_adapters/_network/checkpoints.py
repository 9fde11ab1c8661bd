"""Reject activation checkpoints in networks that are called with other tensors in place of their parameters."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gradhomog import OptionError

_MESSAGE = (
    "a learner calls its network with other tensors in place of parameters (adapted ones, or those of all tasks with "
    "engine='vmap') and of buffers, but an activation checkpoint (torch.utils.checkpoint), or another hook on saved "
    "tensors, would run the forward pass again with those of the module, and the gradient would be wrong. Remove the "
    "checkpoint; recompute=True saves the memory of inner steps. Learners that do not adapt the encoder accept "
    "checkpoints with engine='loop' in networks without buffers."
)

_REENTRANT = (
    "a network of a learner must not contain reentrant checkpoints (torch.utils.checkpoint with use_reentrant=True), "
    "whose parameters are not part of the autograd graph and would get no gradient. Remove the checkpoint."
)


@contextmanager
def reject_checkpoints() -> Iterator[None]:
    """Raise OptionError for checkpoints with `use_reentrant=False`, and for other hooks on saved tensors."""
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks(_MESSAGE):
            yield
    except RuntimeError as error:
        if not any(text in str(error) for text in (_MESSAGE, "support saved tensor hooks")):  # the latter of torch.func
            raise
        raise OptionError(_MESSAGE) from error


@contextmanager
def reject_reentrant_checkpoints_of_data() -> Iterator[None]:
    """Raise OptionError for checkpoints with `use_reentrant=True` whose inputs do not require grad.

    They leave no node in the graph, but PyTorch warns. Not thread-safe, as all filters of warnings.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="None of the inputs have requires_grad=True")
        try:
            yield
        except UserWarning as warning:
            raise OptionError(_REENTRANT) from warning


def reject_reentrant_checkpoints(output: Tensor, inputs: Iterable[Tensor]) -> None:
    """Raise for checkpoints with `use_reentrant=True` between inputs and output: their parameters get no gradient.

    Raises:
        OptionError.
    """
    seen: set[Any] = {tensor.grad_fn for tensor in inputs} | {None}
    stack = [output.grad_fn]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        assert node is not None  # None is in `seen`
        if node.name() == "CheckpointFunctionBackward":
            raise OptionError(_REENTRANT)
        stack += [child for child, _ in node.next_functions]
