"""Defaults of a comparison that names neither domains nor a problem: six families of functions, a minute on two cores.

The setting was chosen by measurement, so that methods differ by more than their intervals, and verified on seeds that
had no part in the choice; docs/results/first-comparison.md has every setting that was tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradhomog.experiments.config.suites import members

_FAMILIES = ("sinusoid", "line", "quadratic", "step", "bumps", "exponential")
_DOMAINS = [f"functions:{family}" for family in _FAMILIES]

DEFAULTS: Mapping[str, Any] = {
    "homogenizers": members("default"),
    "domains": {"train": _DOMAINS, "test": _DOMAINS},
    "episodes": {"shots": 10, "queries": 10, "tasks": len(_FAMILIES)},  # a task of each family in every batch
    "network": {"name": "mlp", "width": 40},
    "train": {"steps": 200, "inner_lr": 0.02, "inner_steps": 3, "validate_every": 100},
    "test": {"episodes": 120},
}


def applies(content: Mapping[str, Any]) -> bool:
    """Whether these are the defaults of a run file's content."""
    domains = content.get("domains", {})
    return "problem" not in content and isinstance(domains, Mapping) and not {"train", "test"} & set(domains)
