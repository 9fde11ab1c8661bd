"""Optional packages that read or contain the data of a domain or a problem."""

import importlib.util

from gradhomog import DataError


def require_package(use: str, module: str, package: str, extra: str) -> None:
    """Raise `DataError` with the extra to install, if a package is missing; `use` begins the message.

    The package is not imported, because the arrays that it would make may be in the cache.
    """
    if importlib.util.find_spec(module) is None:
        raise DataError(f"{use} {package}, which is not installed. Install it with: pip install 'gradhomog[{extra}]'")
