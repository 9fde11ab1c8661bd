"""A small image network that calls `step.transform`, its tasks, and its loop."""

from __future__ import annotations

import torch
import torchopt
from torch import nn
from torch.nn.functional import cross_entropy

import gradhomog
from gradhomog_adapters.torchopt import meta_step


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
