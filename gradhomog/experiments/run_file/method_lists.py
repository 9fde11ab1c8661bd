"""The methods of a comparison whose run file lists none, and the baselines of each comparison.

The settings of `first_comparison` were chosen by measurement, so that methods differ by more than their intervals, and
verified on other seeds. docs/results/first-comparison.md lists the settings that were tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradhomog.experiments.results.runs import SINGLE
from gradhomog.registry import expression

TUNED_STATIC = 'static | static(weights="random", seed=1) | static(weights="random", seed=2)'
EQUAL_NORMS = 'reweight(beta=0, solver="fixed_point")'  # all rows get the same norm

FEW_SHOT = ("none", TUNED_STATIC, "pcgrad", "gradnorm(initial_loss=1.609)", "mgda")
"""Methods of a run file that names domains; 1.609 is the log of 5 classes."""

MULTI_TASK = (
    "none",
    SINGLE,
    TUNED_STATIC,
    "gradnorm | gradnorm(alpha=0.5) | gradnorm(alpha=3.0)",
    "pcgrad",
    "mgda",
    "cagrad | cagrad(c=0.2) | cagrad(c=0.8)",
    "nash_mtl",
)
"""Methods of problems whose plugin lists none. Those with an option that papers tune have as many candidates as static
weights."""


def with_baselines(texts: Sequence[str]) -> list[str]:
    """The methods, preceded by the plain learner and tuned static weights if the list lacks them.

    The added static weights have as many candidates as the method with the most candidates, and at least two: equal
    weights, which are the plain learner, and random weights. If no method is tuned, static weights therefore have one
    more candidate than the methods.

    >>> with_baselines(["pcgrad"])
    ['none', 'static | static(weights="random", seed=1)', 'pcgrad']

    Raises:
        ExpressionError: an expression cannot be parsed.
    """
    parsed = {text: expression.parse_alternatives(text) for text in texts}
    missing = [] if [[]] in parsed.values() else ["none"]
    if not any(len(alternatives) > 1 and _is_static(alternatives) for alternatives in parsed.values()):
        count = max([2, *map(len, parsed.values())])
        random_weights = [f'static(weights="random", seed={seed})' for seed in range(1, count)]
        missing.append(" | ".join(["static", *random_weights]))
    return [*missing, *texts]


def _is_static(alternatives: Sequence[Sequence[expression.Member]]) -> bool:
    return all(len(members) == 1 and members[0][0].rpartition(":")[2] == "static" for members in alternatives)


FAMILIES = ("line", "quadratic", "step", "exponential")
"""Families of `functions` that the network learns in these few steps; it does not learn sinusoids and bumps."""


def first_comparison(content: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults for keys that a run file omits; an empty dict if the run file names domains or a problem."""
    domains_table = content.get("domains", {})
    if "problem" in content or not isinstance(domains_table, Mapping) or {"train", "test"} & set(domains_table):
        return {}
    domains = [f"functions:{family}" for family in FAMILIES]
    return {
        "homogenizers": ["none", TUNED_STATIC, "pcgrad", "scale_invariant", EQUAL_NORMS],
        "seeds": 4,
        "domains": {"train": domains, "test": list(domains)},
        "episodes": {"shots": 10, "queries": 10, "tasks": len(domains)},  # a task of each family in every batch
        "network": {"name": "mlp", "width": 40},
        "train": {"steps": 150, "inner_lr": 0.01, "inner_steps": 5, "validate_every": 75},
        "test": {"episodes": 120},
    }
