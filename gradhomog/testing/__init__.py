"""The conformance kit: checks of the required and claimed properties of homogenizers and learners; a check of domains.

Needs the extra `check` (hypothesis, pytest). The names below are imported lazily, because pytest imports this package
in every run of an environment in which gradhomog is installed.
"""

from typing import Any

import lazy_loader

from gradhomog.errors import ConfigError

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except ModuleNotFoundError as cause:
        if cause.name not in ("hypothesis", "pytest"):
            raise
        raise ConfigError(
            f"gradhomog.testing.{name} needs {cause.name}, which is not installed. Run: pip install 'gradhomog[check]'"
        ) from cause
