"""A smooth float64 network and its tasks, for which finite differences are accurate."""

from __future__ import annotations

import torch
from torch import nn

from gradhomog import Task, TaskBatch


def networks(norm=False, bias=True):
    torch.manual_seed(0)
    layers = [nn.Linear(3, 6, bias=bias), *([nn.BatchNorm1d(6)] if norm else []), nn.Tanh(), nn.Linear(6, 4), nn.Tanh()]
    return nn.Sequential(*layers).double(), nn.Linear(4, 3).double()


def tasks(count=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 15, 3, generator=generator, dtype=torch.float64)
    x = x + 3 * torch.randn(count, 1, 3, generator=generator, dtype=torch.float64)
    y = torch.arange(3).repeat(count, 5)
    return TaskBatch(x[:, :6], y[:, :6], x[:, 6:], y[:, 6:], tuple(f"domain {i}" for i in range(count)))


def image_tasks(batch):
    """The same tasks, with inputs of three numbers as 2×2 images whose last pixel is 0."""
    support, query = (nn.functional.pad(x, (0, 1)).unflatten(-1, (1, 2, 2)) for x in (batch.support_x, batch.query_x))
    return TaskBatch(support, batch.support_y, query, batch.query_y, batch.domains)


class FirstThreePixels(nn.Module):
    """Inputs of three numbers from images of `image_tasks`."""

    def forward(self, images):
        return images.flatten(1)[:, :3]


def assert_rows_are_derivatives(learner, task: Task, names, step=1e-5):
    """Compare the row of each named parameter with central differences of the loss, along a random direction."""
    batch, generator = TaskBatch.stack([task]), torch.Generator().manual_seed(7)
    rows, parameters = learner.rows(batch).jacobian, learner.named_parameters()
    for name in names:
        parameter, losses = parameters[name], []
        along = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        along /= along.norm()
        start = parameter.detach().clone()
        for sign in (1, -1):
            parameter.data.copy_(start + sign * step * along)
            losses.append(float(learner.rows(batch).losses[0]))
        parameter.data.copy_(start)
        expected = (losses[0] - losses[1]) / (2 * step)
        assert abs(float((rows[name][0] * along).sum()) - expected) < 1e-5 * abs(expected) + 1e-8, name
