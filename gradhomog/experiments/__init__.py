"""Comparisons of methods: configured by a run file, computed run by run on any machine, reported on one page.

Public names are imported lazily, at their first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradhomog.experiments.execution.comparison import ComparisonResult, compare
    from gradhomog.experiments.results.columns import Results, load

_EXPORTS = {
    "ComparisonResult": "execution.comparison",
    "compare": "execution.comparison",
    "Results": "results.columns",
    "load": "results.columns",
}

__all__ = ["ComparisonResult", "Results", "compare", "load"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
