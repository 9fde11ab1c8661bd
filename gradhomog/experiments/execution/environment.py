"""What a result depends on besides its configuration: versions and machine, without importing what is asked about."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys

import gradhomog

PACKAGES = ("torch", "torchopt", "pluggy", "numpy", "matplotlib", "pillow", "torchjd", "scikit-learn", "mlxtend")


def versions() -> dict[str, str]:
    """Versions of Python, gradhomog and the packages that decide results; those that are not installed are left out."""
    found = {"python": platform.python_version(), "gradhomog": gradhomog.__version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, str | int]:
    """Operating system, processor and number of cores."""
    return {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count() or 1}


def report() -> dict[str, object]:
    """All of it, with the interpreter: what to paste into an issue."""
    return {"versions": versions(), "machine": machine(), "interpreter": sys.executable}
