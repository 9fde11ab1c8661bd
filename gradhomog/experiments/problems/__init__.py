"""Multi-task problems by name: what `problem.name` of a run file may be; one module each, imported when it is named."""

from __future__ import annotations

import importlib
from typing import Any

from gradhomog.errors import ConfigError
from gradhomog.experiments.config.suggestions import did_you_mean
from gradhomog.experiments.problems.spec import Options, ProblemSpec

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
    spec: ProblemSpec = importlib.import_module(f"gradhomog.experiments.problems.{name}").PROBLEM
    return spec
