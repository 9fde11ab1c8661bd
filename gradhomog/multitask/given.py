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
        OptionError: no loss; a loss is no scalar tensor or has no graph.
    """
    names = tuple(given) if isinstance(given, Mapping) else None
    losses = list(given.values()) if isinstance(given, Mapping) else list(given)
    if not losses:
        raise OptionError("`losses` must hold one loss per task; got none.")
    for index, loss in enumerate(losses):
        which = f"the loss of task {names[index] if names else index}"
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise OptionError(f"{which} must be a scalar tensor; got {found}. Take the mean over its examples.")
        if not loss.requires_grad:
            raise OptionError(
                f"{which} must have a graph; it has none. Compute it from the model's outputs, without torch.no_grad, "
                "detach or item."
            )
    return [loss.reshape(()) for loss in losses], names


def parameters_of(given: Parameters) -> dict[str, Tensor]:
    """The shared tensors that require grad, by name; those without names are called by their place: `"0"`, `"1"`.

    Raises:
        OptionError: none requires grad; something is no tensor.
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
    for name, tensor in named:
        if not isinstance(tensor, Tensor):
            raise OptionError(f"`parameters` must hold tensors; {name!r} is {type(tensor).__name__}.")
    found = {name: tensor for name, tensor in named if tensor.requires_grad}
    if not found:
        raise OptionError(
            f"`parameters` must hold a tensor that requires grad; of {len(named)} given none does. Is the shared part "
            "frozen?"
        )
    return found


def features_of(given: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """The tensors that all heads start from.

    Raises:
        OptionError: one is no tensor or requires no grad.
    """
    tensors = [given] if isinstance(given, Tensor) else list(given)
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or not tensor.requires_grad:
            found = "no tensor" if not isinstance(tensor, Tensor) else "one that requires no grad"
            raise OptionError(
                f"`features` must be what the shared part of the model returned, with its graph; got {found}. "
                "Leave `features` out if the shared part is frozen."
            )
    return tensors


def as_dense(gradient: Tensor | None) -> Tensor | None:
    """A gradient as autograd gives it; that of a sparse embedding made dense."""
    return gradient.to_dense() if gradient is not None and gradient.layout != torch.strided else gradient
