"""Package versions, machine, device and threads, which results depend on. Imports no package before it is needed."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import gradhomog
from gradhomog.errors import ConfigError

if TYPE_CHECKING:
    import torch

PACKAGES = (
    "torch",
    "torchopt",
    "pluggy",
    "numpy",
    "matplotlib",
    "pillow",
    "scikit-learn",
    "mlxtend",
    "pytorch-optimizer",
)


def versions() -> dict[str, str]:
    """Return the versions of Python, gradhomog and the packages that affect results, if installed."""
    installed = {"python": platform.python_version(), "gradhomog": gradhomog.__version__}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
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


def device(name: str) -> torch.device:
    """Return the device of this name.

    Raises:
        ConfigError: PyTorch cannot use this device on this machine.
    """
    import torch

    try:
        tensor = torch.zeros(1, device=name)
        tensor.item()  # raises on devices without data, such as meta, which cannot train
        return tensor.device
    except (RuntimeError, AssertionError, NotImplementedError) as cause:
        # The name is unknown, or this machine or this build of PyTorch has no such device.
        reason = str(cause).splitlines()[0]
        raise ConfigError(
            f"`device` must be one that PyTorch can use here, such as cpu; got {name!r}: {reason}"
        ) from cause
