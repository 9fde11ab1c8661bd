"""Reference inner loops: each update is a function of parameters, gradients and state, on lists of tensors."""

from __future__ import annotations

import copy

import torch
import torchopt
from torch.nn.functional import mse_loss

from tests.adapters.meta_step.loops import STEPS


def sgd(parameters, gradients, state):
    return [p - 0.1 * g for p, g in zip(parameters, gradients, strict=True)], state


def momentum(parameters, gradients, state):
    state = [0.9 * s + g for s, g in zip(state or [0.0] * len(gradients), gradients, strict=True)]
    return [p - 0.1 * s for p, s in zip(parameters, state, strict=True)], state


def adam(parameters, gradients, state):
    count, m, v = state or (0, [0.0] * len(gradients), [0.0] * len(gradients))
    count += 1
    m = [0.9 * a + 0.1 * g for a, g in zip(m, gradients, strict=True)]
    v = [0.999 * a + 0.001 * g * g for a, g in zip(v, gradients, strict=True)]
    # TorchOpt computes decay**count in float32, also for float64: 1 - 0.999**count then has four correct digits.
    first, second = (1 - torch.pow(decay, torch.tensor(count)).double() for decay in (0.9, 0.999))
    steps = [a / first / ((b / second + 1e-8).sqrt() + 1e-8) for a, b in zip(m, v, strict=True)]
    return [p - 0.02 * s for p, s in zip(parameters, steps, strict=True)], (count, m, v)


INNER = {
    "sgd": (sgd, lambda net: torchopt.MetaSGD(net, lr=0.1)),
    "momentum": (momentum, lambda net: torchopt.MetaSGD(net, lr=0.1, momentum=0.9)),
    "adam": (adam, lambda net: torchopt.MetaAdam(net, lr=0.02, eps_root=1e-8)),
}


def query_loss(net, task, update):
    """Query loss after the inner loop, with its graph, by `torch.autograd.grad` on a functional network."""
    names, parameters = zip(*net.named_parameters(), strict=True)

    def loss(parameters, x, y):
        return mse_loss(torch.func.functional_call(net, dict(zip(names, parameters, strict=True)), (x,)), y)

    state = None
    for _ in range(STEPS):
        gradients = torch.autograd.grad(loss(parameters, *task[:2]), parameters, create_graph=True)
        parameters, state = update(parameters, gradients, state)
    return loss(parameters, *task[2:])


def reference_row(net, task, update):
    """Row of one task, by parameter name; does not change the buffers of `net`."""
    net = copy.deepcopy(net)
    names, leaves = zip(*net.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(query_loss(net, task, update), leaves), strict=True))
