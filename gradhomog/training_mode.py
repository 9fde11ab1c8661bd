"""Context manager that sets several modules to training or evaluation mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def training_mode(modules: Iterable[nn.Module], training: bool) -> Iterator[None]:
    """Set all submodules to one mode within the context; afterwards restore the previous mode of each."""
    before = [(part, part.training) for module in modules for part in module.modules()]
    try:
        for part, _ in before:
            part.training = training
        yield
    finally:
        for part, was in before:
            part.training = was
