"""Autograd functions that hide parts of the graph: compiled functions and reentrant checkpoints."""

from __future__ import annotations

from typing import Any

from gradhomog.autograd.reachability import Reachability
from gradhomog.errors import OptionError


def compiled_functions(graph: Reachability) -> list[Any]:
    """Return the nodes of functions that AOTAutograd compiled.

    Raises:
        OptionError: the graph contains a reentrant checkpoint.
    """
    names = {node: node.name() for node in graph.functions}
    if "CheckpointFunctionBackward" in names.values():
        # `torch.autograd.grad` raises only if the checkpoint lies between a loss and a parameter outside it. Otherwise
        # the gradients of the parameters within the checkpoint would be missing, without an error.
        raise OptionError(
            "the losses were computed with a reentrant checkpoint, whose parameters are not part of the autograd "
            "graph. Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False); in Transformers "
            "gradient_checkpointing_kwargs={'use_reentrant': False}. Nothing was written."
        )
    return [node for node, name in names.items() if name == "CompiledFunctionBackward"]


def check_outputs_apart(graph: Reachability) -> None:
    """Raise if losses were computed from several outputs of a compiled function, so that their leaves are unknown.

    Raises:
        OptionError.
    """
    if any(len(graph.functions[node]) > 1 for node in compiled_functions(graph)):
        raise OptionError(
            "`parameters` is required, because losses depend on several outputs of one torch.compile'd function; the "
            "graph does not contain which of its parameters each output depends on. Pass the shared module as "
            "`parameters`."
        )
