"""The conformance kit: checks that a homogenizer, a learner or a domain has the required and claimed properties.

Needs the extra `check` (hypothesis, pytest). The names below are imported lazily, because pytest imports this package
in every run of an environment in which gradhomog is installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradhomog.errors import ConfigError

if TYPE_CHECKING:
    from gradhomog.testing.check import Check, CheckFailure, CheckResult, Outcome
    from gradhomog.testing.kits import check_domain, check_homogenizer, check_learner, checks
    from gradhomog.testing.parametrization import parametrize_with_checks
    from gradhomog.testing.report import CheckReport
    from gradhomog.testing.strategies import gramians, jacobians, task_batches

_EXPORTS = {
    "check": ("Check", "CheckFailure", "CheckResult", "Outcome"),
    "kits": ("check_domain", "check_homogenizer", "check_learner", "checks"),
    "parametrization": ("parametrize_with_checks",),
    "report": ("CheckReport",),
    "strategies": ("gramians", "jacobians", "task_batches"),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "Check",
    "CheckFailure",
    "CheckReport",
    "CheckResult",
    "Outcome",
    "check_domain",
    "check_homogenizer",
    "check_learner",
    "checks",
    "gramians",
    "jacobians",
    "parametrize_with_checks",
    "task_batches",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'gradhomog.testing' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"gradhomog.testing.{_MODULE_OF[name]}"), name)
    except ModuleNotFoundError as cause:
        if cause.name not in ("hypothesis", "pytest"):
            raise
        raise ConfigError(
            f"gradhomog.testing.{name} needs {cause.name}, which is not installed. Run: pip install 'gradhomog[check]'"
        ) from cause


def __dir__() -> list[str]:
    return __all__
