"""TorchOpt's functional API: MAML on curves with `FuncOptimizer`, `functional_call` and `torchopt.adam`."""

import numpy as np
import torch
import torch.nn.functional as F
import torchopt
from torch import nn
from torch.func import functional_call

import gradhomog

INNER_STEPS = 3


def network():
    return nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))


def query_loss(net, params, task):
    """Return the query loss after the inner loop, a differentiable function of `params`."""
    inner = torchopt.FuncOptimizer(torchopt.adam(lr=0.02, eps_root=1e-8))  # new in each task: it stores the moments
    for _ in range(INNER_STEPS):
        support_loss = F.mse_loss(functional_call(net, params, task.support_x), task.support_y)
        params = inner.step(support_loss, params)
    return F.mse_loss(functional_call(net, params, task.query_x), task.query_y)


def gradients(net, params, tasks):
    """Return one row per task, by parameter name `[tasks, *shape]`, and the losses `[tasks]`."""
    losses, rows = [], []
    for task in tasks:
        loss = query_loss(net, params, task)
        rows.append(torch.autograd.grad(loss, list(params.values())))
        losses.append(loss.detach())
    return dict(zip(params, map(torch.stack, zip(*rows, strict=True)), strict=True)), torch.stack(losses)


def train(net, batches, pipe):
    params = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    outer = torchopt.adam(lr=3e-3)
    state = outer.init(params)
    for batch in batches:
        rows, losses = gradients(net, params, batch)
        direction = pipe.combine(rows, losses=losses, domains=[task.domain for task in batch])
        updates, state = outer.update(direction, state, params=params, inplace=False)
        params = torchopt.apply_updates(params, updates, inplace=False)
        params = {name: p.detach().requires_grad_() for name, p in params.items()}
    return params


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small networks: more threads are slower
    rng = np.random.default_rng(0)
    domains = [gradhomog.domain(f"functions:{name}") for name in ("sinusoid", "line", "quadratic")]
    shape = {"ways": 1, "shots": 10, "queries": 10}
    unseen = [domain.sample("test", rng, **shape) for domain in domains for _ in range(20)]

    net = network()
    before = np.mean([query_loss(net, dict(net.named_parameters()), task).item() for task in unseen])
    batches = ([domain.sample("train", rng, **shape) for domain in domains] for _ in range(80))
    params = train(net, batches, gradhomog.pipeline("pcgrad"))
    after = np.mean([query_loss(net, params, task).item() for task in unseen])
    print(f"query loss on unseen functions: {before:.2f} before, {after:.2f} after")


if __name__ == "__main__":
    main()
