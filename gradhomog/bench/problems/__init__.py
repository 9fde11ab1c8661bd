"""Multi-task problems by name: what `problem.name` of a run file may be; one module each, imported when it is named."""

from __future__ import annotations

import importlib
from typing import Any

from gradhomog.bench.near import did_you_mean
from gradhomog.bench.problems.spec import Options, ProblemSpec
from gradhomog.errors import ConfigError

__all__ = ["NAMES", "Options", "ProblemSpec", "find"]

NAMES = ("glyph_pairs", "digit_pairs", "regression", "landscape")


def find(name: Any) -> ProblemSpec:
    """The problem of a name.

    Raises:
        ConfigError: there is none.
    """
    if name is None:
        raise ConfigError(f"`problem.name` is missing; it must be one of {', '.join(NAMES)}.")
    if name not in NAMES:
        hint = did_you_mean(name, NAMES)
        raise ConfigError(f"`problem.name` must be one of {', '.join(NAMES)}; got {name!r}.{hint}")
    spec: ProblemSpec = importlib.import_module(f"gradhomog.bench.problems.{name}").PROBLEM
    return spec
