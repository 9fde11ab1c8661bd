"""MAML as others write it: by hand, with TorchOpt's MetaSGD, with `higher`; for comparison only."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradhomog.scoring import default_loss
from gradhomog.tasks import Task, TaskBatch

STEPS, RATE = 5, 0.01

Accumulate = Callable[[nn.Module, TaskBatch], None]
"""Adds the gradient of the tasks' mean query loss to `.grad` of a network's parameters."""


class Peer:
    """One meta-step: the gradient in a peer's way, then Adam.

    With rate 0, so that every round is at the same place: Adam does the same arithmetic with any.
    """

    def __init__(self, accumulate: Accumulate, network: nn.Module) -> None:
        self.accumulate, self.network = accumulate, network
        self.outer = torch.optim.Adam(network.parameters(), lr=0.0)

    def __call__(self, batch: TaskBatch) -> None:
        self.outer.zero_grad()
        self.accumulate(self.network, batch)
        self.outer.step()


def by_hand(network: nn.Module, batch: TaskBatch, *, first_order: bool = False) -> None:
    """A loop over tasks that frees the graph of each: what all others are compared with."""
    parameters = dict(network.named_parameters())
    for task in batch:
        at = _adapted(network, parameters, task, first_order)
        found = torch.autograd.grad(_query_loss(network, at, task), [*(at if first_order else parameters).values()])
        for parameter, slope in zip(parameters.values(), found, strict=True):
            share = slope / len(batch)
            parameter.grad = share if parameter.grad is None else parameter.grad.add_(share)


def summed(network: nn.Module, batch: TaskBatch) -> None:
    """As in tutorials: query losses are added up, with one `backward` for all, so that all tasks' graphs are kept."""
    parameters = dict(network.named_parameters())
    losses = [_query_loss(network, _adapted(network, parameters, task, False), task) for task in batch]
    torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]


def _adapted(network: nn.Module, start: dict[str, nn.Parameter], task: Task, first_order: bool) -> dict[str, Tensor]:
    at: dict[str, Tensor] = dict(start)
    for _ in range(STEPS):
        loss = default_loss(functional_call(network, at, (task.support_x,)), task.support_y)
        slopes = torch.autograd.grad(loss, [*at.values()], create_graph=not first_order)
        at = {name: p - RATE * slope for (name, p), slope in zip(at.items(), slopes, strict=True)}
        if first_order:
            at = {name: p.detach().requires_grad_() for name, p in at.items()}
    return at


def _query_loss(network: nn.Module, at: dict[str, Tensor], task: Task) -> Tensor:
    return default_loss(functional_call(network, at, (task.query_x,)), task.query_y)


def with_meta_sgd(network: nn.Module, batch: TaskBatch) -> None:
    """TorchOpt's tutorial, with `detach_buffers`: without it tasks share the buffers of batch normalization."""
    import torchopt

    inner = torchopt.MetaSGD(network, lr=RATE)
    start = torchopt.extract_state_dict(network, by="reference", detach_buffers=True)
    fresh = torchopt.extract_state_dict(inner, by="reference")
    for task in batch:
        for _ in range(STEPS):
            inner.step(default_loss(network(task.support_x), task.support_y))
        (default_loss(network(task.query_x), task.query_y) / len(batch)).backward()  # type: ignore[no-untyped-call]
        torchopt.recover_state_dict(network, start)
        torchopt.recover_state_dict(inner, fresh)


def with_higher(network: nn.Module, batch: TaskBatch) -> None:
    """The loop of `higher`'s examples."""
    higher: Any = importlib.import_module("higher")
    inner = torch.optim.SGD(network.parameters(), lr=RATE)
    for task in batch:
        with higher.innerloop_ctx(network, inner, copy_initial_weights=False) as (adapted, descent):
            for _ in range(STEPS):
                descent.step(default_loss(adapted(task.support_x), task.support_y))
            (default_loss(adapted(task.query_x), task.query_y) / len(batch)).backward()  # type: ignore[no-untyped-call]


BY_HAND = "hand-written loop"

PEERS: dict[str, Accumulate] = {
    BY_HAND: by_hand,
    "hand-written, losses summed": summed,
    "TorchOpt MetaSGD": with_meta_sgd,
    "higher": with_higher,
    "hand-written, first order": partial(by_hand, first_order=True),
}
"""By label; the first is the reference."""

PACKAGES = {"TorchOpt MetaSGD": "torchopt", "higher": "higher"}
"""What a peer needs besides PyTorch."""


def missing() -> dict[str, str]:
    """Peers whose package is not installed, with its name."""
    return {label: package for label, package in PACKAGES.items() if importlib.util.find_spec(package) is None}
