"""Defaults of a comparison that names neither domains nor a problem: four families of functions, two minutes.

The settings were chosen by measurement, so that methods differ by more than their intervals, and verified on other
seeds. docs/results/first-comparison.md lists the settings that were tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradhomog.experiments.run_file.suites import suite_pipelines

FAMILIES = ("line", "quadratic", "step", "exponential")
"""Families of `functions` that the network learns in these few steps; it does not learn sinusoids and bumps."""


def defaults(content: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults for keys that a run file omits; an empty dict if the run file names domains or a problem."""
    domains_table = content.get("domains", {})
    if "problem" in content or not isinstance(domains_table, Mapping) or {"train", "test"} & set(domains_table):
        return {}
    domains = [f"functions:{family}" for family in FAMILIES]
    return {
        "homogenizers": suite_pipelines("default"),
        "seeds": 4,
        "domains": {"train": domains, "test": list(domains)},
        "episodes": {"shots": 10, "queries": 10, "tasks": len(domains)},  # a task of each family in every batch
        "network": {"name": "mlp", "width": 40},
        "train": {"steps": 150, "inner_lr": 0.01, "inner_steps": 5, "validate_every": 75},
        "test": {"episodes": 120},
    }
