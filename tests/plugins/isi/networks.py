"""Helpers: a small network of images, its tasks and its learner, and the zeros of its masks."""

import contextlib

import torch
from torch import nn

import gradhomog
from gradhomog import Task, TaskKey

KEY, OTHER = TaskKey(0, "a"), TaskKey(1, "b")


def begin(isi, key=KEY, part="support", step=0):
    """Call `begin` as a learner does, with a generator seeded by the number of the step, the slot and the part."""
    isi.begin(key, part, torch.Generator().manual_seed(100 * step + 10 * key.slot + (part == "query")))


def network(seed=0, channels=1):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip


def images(count=6, seed=0, size=8):
    return torch.randn(count, 1, size, size, generator=torch.Generator().manual_seed(seed))


@contextlib.contextmanager
def attached(isi, encoder):
    """The zeros of the layer `0` (or of another), pass by pass."""
    zeros = []
    handles = [*isi.attach(encoder), encoder[0].register_forward_hook(lambda m, a, output: zeros.append(output == 0))]
    try:
        yield zeros
    finally:
        for handle in handles:
            handle.remove()


def tasks(count=2, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda n: torch.randn(n, 1, 8, 8, generator=generator, dtype=dtype)  # noqa: E731
    return [Task(draw(4), torch.arange(4) % 2, draw(6), torch.arange(6) % 2, f"domain {i}") for i in range(count)]


def learner(homogenizers, dtype=torch.float32, **options):
    encoder = network().to(dtype)
    return gradhomog.learner(
        "maml", encoder, nn.Linear(16, 2, dtype=dtype), homogenizers=homogenizers, inner_lr=0.1, **options
    )
