"""Multi-task problems by name, as in `problem.name` of a run file. The module of a problem is imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

from gradhomog.errors import ConfigError, did_you_mean
from gradhomog.experiments.problems.spec import Options, ProblemSpec

__all__ = ["NAMES", "Options", "ProblemSpec", "find"]

NAMES = ("glyph_pairs", "digit_pairs", "regression", "landscape", "helmholtz", "burgers", "klein_gordon")


def find(name: Any) -> ProblemSpec:
    """Return the problem of a name.

    Raises:
        ConfigError: the name is missing or unknown.
    """
    if name is None:
        raise ConfigError(f"`problem.name` is missing; it must be one of {', '.join(NAMES)}.")
    if name not in NAMES:
        hint = did_you_mean(name, NAMES)
        raise ConfigError(f"`problem.name` must be one of {', '.join(NAMES)}; got {name!r}.{hint}")
    spec: ProblemSpec = importlib.import_module(f"gradhomog.experiments.problems.{name}").PROBLEM
    return spec
