"""Packages that a problem's data come from, and that gradhomog does not depend on."""

from __future__ import annotations

import importlib
from typing import Any

from gradhomog.errors import DataError


def import_optional(module: str, package: str, what: str) -> Any:
    """A module of a package of the extra `problems`.

    Raises:
        DataError: the package is not installed; says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as cause:
        if cause.name is not None and not module.startswith(cause.name):
            raise  # the package is there, and something that it needs is not
        raise DataError(
            f"{what} come from {package}, which is not installed. Install it with: pip install 'gradhomog[problems]'"
        ) from cause
