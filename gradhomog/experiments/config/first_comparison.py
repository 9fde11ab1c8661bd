"""Defaults of a comparison that names neither domains nor a problem: four families of functions, two minutes.

The setting was chosen by measurement, so that methods differ by more than their intervals, and verified on other seeds;
docs/results/first-comparison.md has the settings that were tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradhomog.experiments.config.suites import members

FAMILIES = ("line", "quadratic", "step", "exponential")
"""Those of `functions` that the network learns in so few steps: not sinusoids and bumps."""


def defaults(content: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults for the keys that a run file's content leaves out; none if it names domains or a problem."""
    given = content.get("domains", {})
    if "problem" in content or not isinstance(given, Mapping) or {"train", "test"} & set(given):
        return {}
    domains = [f"functions:{family}" for family in FAMILIES]
    return {
        "homogenizers": members("default"),
        "seeds": 4,
        "domains": {"train": domains, "test": list(domains)},
        "episodes": {"shots": 10, "queries": 10, "tasks": len(domains)},  # a task of each family in every batch
        "network": {"name": "mlp", "width": 40},
        "train": {"steps": 150, "inner_lr": 0.01, "inner_steps": 5, "validate_every": 75},
        "test": {"episodes": 120},
    }
