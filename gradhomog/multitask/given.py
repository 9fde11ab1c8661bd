"""What the caller hands over: losses, shared parameters and features, in the forms that training loops have them in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from gradhomog.errors import OptionError

Losses = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
"""One scalar per task: a tensor `[tasks]`, a sequence of scalars, or a dict of scalars by the tasks' names."""

Parameters = nn.Module | Mapping[str, Tensor] | Iterable[Tensor] | Iterable[tuple[str, Tensor]]
"""A module, tensors by name as `dict(module.named_parameters())`, or what `parameters()`, `named_parameters()` give."""


def losses_of(given: Losses) -> tuple[list[Tensor], tuple[str, ...] | None]:
    """One scalar per task, and the tasks' names if there are any.

    Raises:
        OptionError: no loss; a loss is no real scalar tensor or has no graph.
    """
    names = tuple(given) if isinstance(given, Mapping) else None
    scalar = isinstance(given, Tensor) and given.dim() == 0
    if scalar or not isinstance(given, (Tensor, Sequence, Mapping)):
        found = "one scalar" if scalar else type(given).__name__
        raise OptionError(f"`losses` must be a sequence, a dict or a vector with one loss per task; got {found}.")
    losses = list(given.values()) if isinstance(given, Mapping) else list(given)
    if not losses:
        raise OptionError("`losses` must hold one loss per task; got none.")
    for index, loss in enumerate(losses):
        which = f"the loss of task {names[index] if names else index}"
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            found = f"shape {tuple(loss.shape)}, {loss.dtype}" if isinstance(loss, Tensor) else type(loss).__name__
            raise OptionError(f"{which} must be a real scalar tensor; got {found}. Take the mean over its examples.")
        if not loss.requires_grad:
            raise OptionError(
                f"{which} must have a graph; it has none. Compute it from the model's outputs, without torch.no_grad, "
                "detach or item."
            )
    with torch.enable_grad():  # who calls `backward` where gradients are off still has the graphs
        return [loss if loss.dim() == 0 else loss.reshape(()) for loss in losses], names


def is_stacked(given: Losses) -> bool:
    """Whether losses were computed apart and put into one tensor: then each of them reaches what any of them does."""
    return isinstance(given, Tensor) and type(given.grad_fn).__name__ in ("StackBackward0", "CatBackward0")


def parameters_of(given: Parameters) -> dict[str, Tensor]:
    """The shared tensors that require grad, by name, each once; those without names are called by their place: `"0"`.

    Raises:
        OptionError: none requires grad; something is no real tensor; two tensors have one name.
    """
    if isinstance(given, Tensor):
        raise OptionError("`parameters` must be a module, or several tensors; got one tensor. Write [tensor].")
    named: list[tuple[str, Tensor]]
    if isinstance(given, nn.Module):
        named = [*given.named_parameters()]
    elif isinstance(given, Mapping):
        named = [*given.items()]
    else:
        named = [entry if isinstance(entry, tuple) else (str(index), entry) for index, entry in enumerate(given)]
    found: dict[str, Tensor] = {}
    known: set[int] = set()
    for name, tensor in named:
        if not isinstance(tensor, Tensor) or tensor.is_complex():
            what = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise OptionError(f"`parameters` must hold real tensors; {name!r} is {what}.")
        if not tensor.requires_grad or id(tensor) in known:
            continue
        if name in found:
            raise OptionError(
                f"`parameters` holds two tensors called {name!r}, of shapes {tuple(found[name].shape)} and "
                f"{tuple(tensor.shape)}. Put their modules into one (nn.ModuleList), or leave the names out."
            )
        known.add(id(tensor))
        found[name] = tensor
    if not found:
        raise OptionError(
            f"`parameters` must hold a tensor that requires grad; of {len(named)} given none does. Is the shared part "
            "frozen?"
        )
    return found


def features_of(given: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """The tensors that all heads start from, each once.

    Raises:
        OptionError: there is none; one is no tensor or requires no grad.
    """
    if not isinstance(given, (Tensor, list, tuple)) or (not isinstance(given, Tensor) and not given):
        raise OptionError(
            f"`features` must be a tensor, several, or what task_features returned; got {type(given).__name__}"
            f"{'' if isinstance(given, Tensor) or given else ' without any'}."
        )
    tensors = [given] if isinstance(given, Tensor) else list(given)
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or not tensor.requires_grad:
            found = "no tensor" if not isinstance(tensor, Tensor) else "one that requires no grad"
            raise OptionError(
                f"`features` must be what the shared part of the model returned, with its graph; got {found}. "
                "Leave `features` out if the shared part is frozen."
            )
    return list({id(tensor): tensor for tensor in tensors}.values())


def as_dense(gradient: Tensor | None) -> Tensor | None:
    """A gradient as autograd gives it; that of a sparse embedding made dense."""
    return gradient.to_dense() if gradient is not None and gradient.layout != torch.strided else gradient
