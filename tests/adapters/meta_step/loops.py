"""A small float64 network, its tasks, and a custom loop with `meta_step`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import mse_loss

import gradhomog
from gradhomog import Homogenizer
from gradhomog_adapters.torchopt import meta_step

STEPS = 3


def network(norm=False):
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(5)] if norm else []
    # No bias before a normalization: its gradient is a rounding error, which Adam would divide by.
    return nn.Sequential(nn.Linear(3, 5, bias=not norm), *norms, nn.Tanh(), nn.Linear(5, 2)).double()


def tasks(count=3, seed=1):
    """Return tuples (support_x, support_y, query_x, query_y)."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return [(draw(6, 3), draw(6, 2), draw(4, 3) + task, draw(4, 2)) for task in range(count)]


def loop(net, pipe, batch, make=None, **options):
    """Run a custom loop; `make` creates an inner optimizer for each task, unless `inner` is given."""
    inner = options.get("inner")
    with meta_step(net, pipe, **options) as step:
        for number, (support_x, support_y, query_x, query_y) in enumerate(batch):
            with step.task(domain=f"domain {number}"):
                optimizer = inner or make(net)
                for _ in range(STEPS):
                    optimizer.step(mse_loss(net(support_x), support_y))
                step.add(mse_loss(net(query_x), query_y))
    return step


class Recorder(Homogenizer):
    """Stores the rows that it receives."""

    def rows(self, step):
        self.seen = {name: value.clone() for name, value in step.jacobian.materialize().items()}
        return step.jacobian


def rows_of(net, batch, make=None, **options):
    recorder = Recorder()
    loop(net, gradhomog.pipeline([recorder]), batch, make, **options)
    return recorder.seen
