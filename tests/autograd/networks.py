"""A small multi-task model, and its step computed by hand."""

import torch
from torch import nn

import gradhomog


class Model(nn.Module):
    """A shared encoder and one head per task, in float64."""

    def __init__(self, tasks=3, seed=0, normalized=False):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            layers = [nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6)]
            self.encoder = nn.Sequential(*layers, nn.BatchNorm1d(6)) if normalized else nn.Sequential(*layers)
            self.heads = nn.ModuleList(nn.Linear(6, 2) for _ in range(tasks))
        self.double()

    def losses(self, features, seed=1):
        generator = torch.Generator().manual_seed(seed)
        targets = torch.randn(len(self.heads), features.shape[-2], 2, dtype=torch.float64, generator=generator)
        views = features if features.dim() == 3 else [features] * len(self.heads)
        scales = [10.0**index for index in range(len(self.heads))]
        return [
            scale * (head(view) - target).square().mean()
            for scale, head, view, target in zip(scales, self.heads, views, targets, strict=True)
        ]

    def backward(self, pipe, **options):
        """Take a step with the encoder's parameters as the shared ones."""
        pipe = gradhomog.pipeline(pipe) if isinstance(pipe, str) else pipe
        return gradhomog.backward(self.losses(self.encoder(inputs())), pipe, parameters=self.encoder, **options)


def inputs(size=7, seed=2):
    return torch.randn(size, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_hand(model, text, losses, **options):
    """Return the gradients of encoder and heads: rows by `torch.autograd.grad`, stacked, combined, split again."""
    shared = list(model.encoder.parameters())
    rows = [torch.autograd.grad(loss, shared, retain_graph=True) for loss in losses]
    matrix = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    direction = gradhomog.pipeline(text).combine(matrix, losses=torch.stack(losses).detach(), **options)
    parts = direction.split([p.numel() for p in shared])
    heads = [
        gradient
        for head, loss in zip(model.heads, losses, strict=True)
        for gradient in torch.autograd.grad(loss, list(head.parameters()), retain_graph=True)
    ]
    return [part.view_as(p) for part, p in zip(parts, shared, strict=True)] + heads


def gradients(model):
    return [p.grad for p in [*model.encoder.parameters(), *model.heads.parameters()]]
