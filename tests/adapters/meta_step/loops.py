"""Small networks, tasks, custom loops with `meta_step`, and reference inner loops on lists of tensors."""

import torch
import torchopt
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import gradhomog
from gradhomog import Homogenizer
from gradhomog_adapters.torchopt import meta_step
from tests.adapters import checks

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


INNER = {
    "sgd": lambda net: torchopt.MetaSGD(net, lr=0.1),
    "momentum": lambda net: torchopt.MetaSGD(net, lr=0.1, momentum=0.9),
    "adam": lambda net: torchopt.MetaAdam(net, lr=0.02, eps_root=1e-8),
}
"""The inner optimizers of `checks.INNER`, which adapt a module."""


def reference_row(net, task, inner="sgd"):
    """Row of one task, by parameter name."""
    return checks.reference_row(net, checks.INNER[inner], task, STEPS, loss=mse_loss)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.head = nn.Linear(4 * 3 * 3, 3)

    def forward(self, x, step=None):
        features = self.encoder(x)
        return self.head(features if step is None else step.transform(features))


def image_tasks(count=3):
    x = torch.randn(count, 12, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    y = torch.arange(3).repeat(4)
    return [gradhomog.Task(x[i, :6], y[:6], x[i, 6:], y[6:], f"domain {i}") for i in range(count)]


def image_loop(net, pipe, batch, **options):
    with meta_step(net, pipe, encoder=net.encoder, **options) as step:
        for task in batch:
            with step.task(domain=task.domain):
                inner = torchopt.MetaSGD(net, lr=0.1)
                for _ in range(2):
                    inner.step(cross_entropy(net(task.support_x, step), task.support_y))
                step.query(task.query_y)
                step.add(cross_entropy(net(task.query_x, step), task.query_y))
    return step
