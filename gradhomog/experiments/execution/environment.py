"""Package versions, machine and threads, which results depend on besides their configuration. Imports no package."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import gradhomog

PACKAGES = ("torch", "torchopt", "pluggy", "numpy", "matplotlib", "pillow", "torchjd", "scikit-learn", "mlxtend")


def versions() -> dict[str, str]:
    """Return the versions of Python, gradhomog and the packages that affect results, if installed."""
    installed = {"python": platform.python_version(), "gradhomog": gradhomog.__version__}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def machine() -> dict[str, str | int]:
    """Return operating system, processor and number of cores."""
    return {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count() or 1}


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of threads of PyTorch within the context; restore it afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
