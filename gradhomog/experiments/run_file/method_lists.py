"""Lists of methods by name, such as `homogenizers = "ablation"`, and the baselines of each comparison.

The settings of `first_comparison` were chosen by measurement, so that methods differ by more than their intervals, and
verified on other seeds. docs/results/first-comparison.md lists the settings that were tried.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gradhomog.errors import ConfigError, did_you_mean
from gradhomog.experiments.results.runs import SINGLE
from gradhomog.registry import expression

TUNED_STATIC = 'static | static(weights="random", seed=1) | static(weights="random", seed=2)'
GRADNORM = "gradnorm(initial_loss=1.609)"  # the log of 5 classes
PAPER_WEIGHTS = "static(weights=[0.1, 0.5, 0.3, 0.4])"  # RotoGBML's fixed weights, for four tasks a batch (section 6.3)
EQUAL_NORMS = 'reweight(beta=0, solver="fixed_point")'  # all rows get the same norm
REWEIGHT = 'reweight(beta=1.5, solver="fixed_point")'  # 1.5: β of the RotoGBML paper for strong OOD


def pinn_static(conditions: int = 1) -> str:
    """Tuned static weights for the equation and `conditions` tasks, whose weights reach 1000 in the papers.

    >>> pinn_static(2)
    'static | static(weights=[1, 10, 10]) | static(weights=[1, 100, 100]) | static(weights=[1, 1000, 1000])'
    """
    return " | ".join(["static", *(f"static(weights={[1] + [weight] * conditions})" for weight in (10, 100, 1000))])


PINN_STATIC = pinn_static()

METHOD_LISTS: dict[str, tuple[str, ...]] = {
    # Default of a comparison that names no domains, on families of functions; see `first_comparison`.
    "default": ("none", TUNED_STATIC, "pcgrad", "scale_invariant", EQUAL_NORMS),
    # Default of a run file that names domains.
    "few_shot": ("none", TUNED_STATIC, "pcgrad", GRADNORM, "mgda"),
    # The rows of the ablation table of RotoGBML (Zhang et al. 2023, arXiv 2303.06679) in order, then other methods.
    "ablation": (
        "none",
        PAPER_WEIGHTS,
        REWEIGHT,
        "rotate",
        "isi",
        f"rotate + {REWEIGHT}",
        f"isi + {REWEIGHT}",
        "isi + rotate",
        f"isi + rotate + {REWEIGHT}",
        "rotate_rows",
        "pcgrad",
        GRADNORM,
        TUNED_STATIC,
    ),
    # Default of multi-task problems. Methods with an option that papers tune have as many candidates as static weights.
    "multitask": (
        "none",
        SINGLE,
        TUNED_STATIC,
        "gradnorm | gradnorm(alpha=0.5) | gradnorm(alpha=3.0)",
        "pcgrad",
        "mgda",
        "cagrad | cagrad(c=0.2) | cagrad(c=0.8)",
        "nash_mtl",
    ),
    # The methods of the toy example of Liu et al. 2021 (CAGrad), and static weights.
    "landscape": ("none", TUNED_STATIC, "pcgrad", "mgda", "cagrad | cagrad(c=0.2) | cagrad(c=0.8)"),
    # Default of physics-informed problems with two tasks.
    "pinn": ("none", PINN_STATIC, "pcgrad", "upgrad", "config"),
}


def listed_methods(name: str) -> list[str]:
    """The pipelines of a list.

    >>> listed_methods("ablation")[:2]
    ['none', 'static(weights=[0.1, 0.5, 0.3, 0.4])']

    Raises:
        ConfigError: no list has this name; the message explains how to write a single pipeline.
    """
    if name not in METHOD_LISTS:
        # `json.dumps` escapes quotes within a pipeline as TOML requires.
        pipeline = json.dumps(name, ensure_ascii=False)
        hint = did_you_mean(name, METHOD_LISTS) or f" Write a single pipeline as a list: homogenizers = [{pipeline}]."
        raise ConfigError(
            f"`homogenizers`: unknown list of methods {name!r}; available: {', '.join(METHOD_LISTS)}.{hint}"
        )
    return list(METHOD_LISTS[name])


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
        "homogenizers": listed_methods("default"),
        "seeds": 4,
        "domains": {"train": domains, "test": list(domains)},
        "episodes": {"shots": 10, "queries": 10, "tasks": len(domains)},  # a task of each family in every batch
        "network": {"name": "mlp", "width": 40},
        "train": {"steps": 150, "inner_lr": 0.01, "inner_steps": 5, "validate_every": 75},
        "test": {"episodes": 120},
    }
