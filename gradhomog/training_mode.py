"""The training or evaluation mode of several modules, for the time of a context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def training_mode(modules: Iterable[nn.Module], training: bool) -> Iterator[None]:
    """Within the context all submodules are in one mode; afterwards each is in its own again."""
    before = [(part, part.training) for module in modules for part in module.modules()]
    try:
        for part, _ in before:
            part.training = training
        yield
    finally:
        for part, was in before:
            part.training = was
