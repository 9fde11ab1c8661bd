"""Multi-task problems by name: what `problem.name` of a run file may be; one module each, imported when it is named."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from gradhomog.bench.problems.spec import Options, ProblemSpec
from gradhomog.errors import ConfigError

__all__ = ["NAMES", "Options", "ProblemSpec", "find"]

NAMES = ("glyph_pairs", "digit_pairs", "regression", "landscape")


def find(name: Any) -> ProblemSpec:
    """The problem of a name.

    Raises:
        ConfigError: there is none.
    """
    if name not in NAMES:
        near = difflib.get_close_matches(str(name), NAMES, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise ConfigError(f"`problem.name` must be one of {', '.join(NAMES)}; got {name!r}.{hint}")
    spec: ProblemSpec = importlib.import_module(f"gradhomog.bench.problems.{name}").PROBLEM
    return spec
