"""Import optional packages that contain the data of a problem."""

from __future__ import annotations

import importlib
from typing import Any

from gradhomog import DataError


def import_optional(module: str, package: str, contents: str) -> Any:
    """Import and return a module of a package of the extra `problems`.

    Raises:
        DataError: the package is not installed; the message contains `contents` and the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as cause:
        if cause.name is not None and not module.startswith(cause.name):
            raise  # the package is installed, but one of its dependencies is not
        raise DataError(
            f"{contents} come from {package}, which is not installed. "
            "Install it with: pip install 'gradhomog[problems]'"
        ) from cause
