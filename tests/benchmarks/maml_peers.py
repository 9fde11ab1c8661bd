"""Other implementations of a meta-step of MAML: by hand, with TorchOpt's MetaSGD, and with `higher`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import higher
import torch
import torchopt
from torch import Tensor, nn
from torch.func import functional_call

from gradhomog.learners.scoring import default_loss
from gradhomog.learners.tasks import Task, TaskBatch

STEPS, RATE = 5, 0.01

Accumulate = Callable[[nn.Module, TaskBatch], None]
"""Adds the gradient of the tasks' mean query loss to `.grad` of a network's parameters."""


class Peer:
    """One meta-step: the gradient as computed by a peer, then Adam.

    The learning rate is 0, so that parameters are constant; the cost of Adam does not depend on it.
    """

    def __init__(self, accumulate: Accumulate, network: nn.Module) -> None:
        self.accumulate, self.network = accumulate, network
        self.outer = torch.optim.Adam(network.parameters(), lr=0.0)

    def __call__(self, batch: TaskBatch) -> None:
        self.outer.zero_grad()
        self.accumulate(self.network, batch)
        self.outer.step()


def by_hand(network: nn.Module, batch: TaskBatch, *, first_order: bool = False) -> None:
    """A loop over tasks that frees the graph of each task; the reference."""
    parameters = dict(network.named_parameters())
    for task in batch:
        adapted = _adapt(network, parameters, task, first_order)
        loss = _query_loss(network, adapted, task)
        gradients = torch.autograd.grad(loss, [*(adapted if first_order else parameters).values()])
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            share = gradient / len(batch)
            parameter.grad = share if parameter.grad is None else parameter.grad.add_(share)


def summed(network: nn.Module, batch: TaskBatch) -> None:
    """As in tutorials: one `backward` of the mean query loss, which keeps the graphs of all tasks in memory."""
    parameters = dict(network.named_parameters())
    losses = [_query_loss(network, _adapt(network, parameters, task, False), task) for task in batch]
    torch.stack(losses).mean().backward()


def _adapt(network: nn.Module, start: dict[str, nn.Parameter], task: Task, first_order: bool) -> dict[str, Tensor]:
    adapted: dict[str, Tensor] = dict(start)
    for _ in range(STEPS):
        loss = default_loss(functional_call(network, adapted, (task.support_x,)), task.support_y)
        gradients = torch.autograd.grad(loss, [*adapted.values()], create_graph=not first_order)
        adapted = {name: p - RATE * gradient for (name, p), gradient in zip(adapted.items(), gradients, strict=True)}
        if first_order:
            adapted = {name: p.detach().requires_grad_() for name, p in adapted.items()}
    return adapted


def _query_loss(network: nn.Module, parameters: dict[str, Tensor], task: Task) -> Tensor:
    return default_loss(functional_call(network, parameters, (task.query_x,)), task.query_y)


def with_meta_sgd(network: nn.Module, batch: TaskBatch) -> None:
    """As in TorchOpt's tutorial, with `detach_buffers`: otherwise tasks share the buffers of batch normalization."""
    inner = torchopt.MetaSGD(network, lr=RATE)
    start = torchopt.extract_state_dict(network, by="reference", detach_buffers=True)
    fresh = torchopt.extract_state_dict(inner, by="reference")
    for task in batch:
        for _ in range(STEPS):
            inner.step(default_loss(network(task.support_x), task.support_y))
        (default_loss(network(task.query_x), task.query_y) / len(batch)).backward()
        torchopt.recover_state_dict(network, start)
        torchopt.recover_state_dict(inner, fresh)


def with_higher(network: nn.Module, batch: TaskBatch) -> None:
    """As in the examples of `higher`."""
    inner = torch.optim.SGD(network.parameters(), lr=RATE)
    for task in batch:
        with higher.innerloop_ctx(network, inner, copy_initial_weights=False) as (adapted, descent):
            for _ in range(STEPS):
                descent.step(default_loss(adapted(task.support_x), task.support_y))
            (default_loss(adapted(task.query_x), task.query_y) / len(batch)).backward()


BY_HAND, META_SGD, HIGHER = "hand-written loop", "TorchOpt MetaSGD", "higher"

PEERS: dict[str, Accumulate] = {
    BY_HAND: by_hand,
    "hand-written, losses summed": summed,
    META_SGD: with_meta_sgd,
    HIGHER: with_higher,
    "hand-written, first order": partial(by_hand, first_order=True),
}
"""Peers by label; the first is the reference."""
