"""A smooth float64 network and its tasks, for tests of learners; finite differences are then exact to many digits."""

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


def assert_rows_are_derivatives(learner, task: Task, names, step=1e-5):
    """Each entry of some parameters' row against central differences of the loss."""
    batch = TaskBatch.stack([task])
    rows, parameters = learner.rows(batch).jacobian, learner.named_parameters()
    for name in names:
        flat, found = parameters[name].data.view(-1), rows[name][0].reshape(-1)
        for index in range(flat.numel()):
            start, losses = float(flat[index]), []
            for sign in (1, -1):
                flat[index] = start + sign * step
                losses.append(float(learner.rows(batch).losses[0]))
            flat[index] = start
            expected = (losses[0] - losses[1]) / (2 * step)
            assert abs(float(found[index]) - expected) < 1e-5 * abs(expected) + 1e-8, (name, index)
