"""Losses, shared parameters and features in the forms that training loops have them in, validated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradhomog.errors import OptionError

Losses = Tensor | Sequence[Tensor | None] | Mapping[str, Tensor | None]
"""One scalar per task: a tensor `[tasks]`, a sequence, or a dict by the tasks' names; None for an absent task."""

Parameters = nn.Module | Mapping[str, Tensor] | Iterable[Tensor] | Iterable[tuple[str, Tensor]]
"""A module, a dict of tensors by name, or the result of `parameters()` or `named_parameters()`."""


@dataclass(frozen=True)
class TaskLosses:
    """The losses of the tasks that are present in a step.

    Attributes:
        losses: one scalar with a graph for each present task.
        slots: the places of these tasks in the batch.
        tasks: N, the number of tasks, absent ones included.
        names: of all tasks, if they have any.
        stacked: whether the losses were computed separately and stacked: each then reaches what any of them does.
    """

    losses: list[Tensor]
    slots: tuple[int, ...]
    tasks: int
    names: tuple[str, ...] | None
    stacked: bool

    def label(self, index: int) -> str:
        """The name of a present task in error messages."""
        slot = self.slots[index]
        return self.names[slot] if self.names else str(slot)

    def present(self, values: Sequence[str] | None, option: str) -> tuple[str, ...]:
        """The entries of the present tasks, from one per task; empty without any.

        Raises:
            OptionError: there are neither as many entries as tasks nor none.
        """
        if not values:
            return ()
        if len(values) != self.tasks:
            raise OptionError(f"`{option}` must name one for each of the {self.tasks} tasks; got {list(values)}.")
        return tuple(values[slot] for slot in self.slots)


def task_losses(given: Losses) -> TaskLosses:
    """Validate losses. A task is absent if its loss is None or a constant (a tensor that requires no grad).

    Raises:
        OptionError: no task is present; a loss is no real scalar tensor.
    """
    names = tuple(given) if isinstance(given, Mapping) else None
    scalar = isinstance(given, Tensor) and given.dim() == 0
    if scalar or not isinstance(given, Tensor | Sequence | Mapping):
        found = "one scalar" if scalar else type(given).__name__
        raise OptionError(f"`losses` must be a sequence, a dict or a vector with one loss per task; got {found}.")
    with torch.enable_grad():  # the graphs exist where this is called without gradients too
        entries = list(given.values()) if isinstance(given, Mapping) else list(given)
    if not entries:
        raise OptionError("`losses` must hold one loss per task; got none.")
    present: list[tuple[int, Tensor]] = []
    for slot, loss in enumerate(entries):
        if loss is None:
            continue
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            which = f"the loss of task {names[slot] if names else slot}"
            found = f"shape {tuple(loss.shape)}, {loss.dtype}" if isinstance(loss, Tensor) else type(loss).__name__
            raise OptionError(f"{which} must be a real scalar tensor; got {found}. Take the mean over its examples.")
        if loss.requires_grad:
            present.append((slot, loss))
    if not present:
        raise OptionError(
            "at least one loss must have a graph; none has. Compute the losses from the model's outputs, without "
            "torch.no_grad, detach or item."
        )
    stacked = isinstance(given, Tensor) and type(given.grad_fn).__name__ in ("StackBackward0", "CatBackward0")
    with torch.enable_grad():
        losses = [loss if loss.dim() == 0 else loss.reshape(()) for _, loss in present]
    return TaskLosses(losses, tuple(slot for slot, _ in present), len(entries), names, stacked)


def shared_parameters(given: Parameters) -> dict[str, Tensor]:
    """The tensors that require grad, by name, each once; without names they are numbered: `"0"`.

    Raises:
        OptionError: none requires grad; an entry is no real tensor; two tensors have one name.
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


def feature_tensors(given: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """The tensors from which all heads start, each once.

    Raises:
        OptionError: there is none; an entry is no tensor or requires no grad.
    """
    if not isinstance(given, Tensor | list | tuple) or (not isinstance(given, Tensor) and not given):
        raise OptionError(
            f"`features` must be a tensor, several, or the result of task_features; got {type(given).__name__}"
            f"{'' if isinstance(given, Tensor) or given else ' without any'}."
        )
    tensors = [given] if isinstance(given, Tensor) else list(given)
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or not tensor.requires_grad:
            found = "no tensor" if not isinstance(tensor, Tensor) else "one that requires no grad"
            raise OptionError(
                f"`features` must be the output of the shared part of the model, with its graph; got {found}. "
                "Leave `features` out if the shared part is frozen."
            )
    return list({id(tensor): tensor for tensor in tensors}.values())


def require_one_process() -> None:
    """Raise in a process group of several ranks: their homogenizers would diverge.

    Raises:
        OptionError: it names the number of ranks.
    """
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise OptionError(
            f"gradients are homogenized within one process, and this is one of {distributed.get_world_size()} ranks: "
            "each would take another direction, and the replicas would diverge. Nothing was written. Train on one "
            "rank; steps across ranks are not supported yet."
        )
