"""Tasks whose losses and gradients are known exactly."""

import torch

from gradhomog import pipeline


def quadratics(tasks=4, params=6, seed=0, floor=0.3):
    """A float64 point and a function of it that gives positive losses of several sizes, `[tasks]`."""
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randn(tasks, 5, params, generator=generator, dtype=torch.float64)
    goals = torch.randn(tasks, 5, generator=generator, dtype=torch.float64)
    sizes = torch.logspace(-0.5, 0.5, tasks, dtype=torch.float64)
    theta = torch.randn(params, generator=generator, dtype=torch.float64)
    return theta, lambda point: floor + sizes * (maps @ point - goals).square().mean(dim=1)


def rows_and_losses(losses_of, theta):
    point = theta.clone().requires_grad_()
    losses = losses_of(point)
    rows = torch.stack([torch.autograd.grad(loss, point, retain_graph=True)[0] for loss in losses])
    return rows, losses.detach()


def gradient_of(combined, losses_of, theta):
    """Return the gradient w.r.t. theta of a scalar function of the losses, by autograd."""
    point = theta.clone().requires_grad_()
    return torch.autograd.grad(combined(losses_of(point)), point)[0]


def weights(pipe, losses, steps=1, **options):
    """Return the weights in the last of several steps on the same losses, with orthonormal rows."""
    pipe, losses = pipeline(pipe), torch.as_tensor(losses, dtype=torch.float64)
    for _ in range(steps):
        result = pipe.homogenize(torch.eye(len(losses), dtype=torch.float64), losses, **options)
    return result.weights
