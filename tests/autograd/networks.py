"""A small multi-task model, and its step computed by hand."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

import gradhomog
from gradhomog import Pipeline


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


def take_step(call: str, batches: Iterable[Any], pipe: Pipeline, **options: Any) -> None:
    """Take a step by `backward`, `loss`, `accumulated` or `window`.

    `batches`: the losses of each batch, computed when read; for `window` (losses, examples, is last).
    """
    if call == "window":
        several = gradhomog.accumulated(pipe, **options)
        for losses, examples, last in batches:
            several.loss(losses, examples=examples, last=last).backward()
        return
    if call == "accumulated":
        with gradhomog.accumulated(pipe, **options) as several:
            for losses in batches:
                several.add(losses)
        return
    (losses,) = batches
    if call == "loss":
        gradhomog.loss(losses, pipe, **options).backward()
    else:
        gradhomog.backward(losses, pipe, **options)


def matrix(losses: Iterable[Tensor], parameters: Iterable[Tensor]) -> Tensor:
    """Rows `[tasks, params]`, by one `torch.autograd.grad` per loss."""
    leaves, options = list(parameters), {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    rows = [torch.autograd.grad(loss, leaves, **options) for loss in losses]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


def by_hand(model, text, losses, **options):
    """Return the gradients of encoder and heads: rows, combined and split again."""
    shared = list(model.encoder.parameters())
    rows = matrix(losses, shared)
    direction = gradhomog.pipeline(text).combine(rows, losses=torch.stack(losses).detach(), **options)
    parts = direction.split([p.numel() for p in shared])
    heads = [
        gradient
        for head, loss in zip(model.heads, losses, strict=True)
        for gradient in torch.autograd.grad(loss, list(head.parameters()), retain_graph=True)
    ]
    return [part.view_as(p) for part, p in zip(parts, shared, strict=True)] + heads


def gradients(model):
    return [p.grad for p in [*model.encoder.parameters(), *model.heads.parameters()]]


def flat(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients])
