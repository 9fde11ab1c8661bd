"""Named lists of methods: what a run file means by `homogenizers = "ablation"`; and the baselines of every table."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gradhomog import expression
from gradhomog.errors import ConfigError
from gradhomog.experiments.config.suggestions import did_you_mean
from gradhomog.experiments.results.plan import SINGLE

TUNED_STATIC = 'static | static(weights="random", seed=1) | static(weights="random", seed=2)'
GRADNORM = 'gradnorm(key="domain", initial_loss=1.609)'  # the log of 5 classes
HYPER = "static(weights=[0.1, 0.5, 0.3, 0.4])"  # the paper's fixed weights, for four tasks a batch (section 6.3)
EQUAL_NORMS = 'reweight(beta=0, solver="fixed_point")'  # every task's gradient has the same norm
REWEIGHT = 'reweight(beta=1.5, solver="fixed_point")'  # 1.5: the paper's β for strong OOD

SUITES: dict[str, tuple[str, ...]] = {
    # Of a comparison that names no domains, on families of functions; see `first_comparison`.
    "default": ("none", TUNED_STATIC, "pcgrad", "scale_invariant", EQUAL_NORMS),
    # Of a run file that names domains.
    "few_shot": ("none", TUNED_STATIC, "pcgrad", GRADNORM, "mgda"),
    # The ablation table of RotoGBML (Zhang et al. 2023, arXiv 2303.06679) in its order, then comparisons.
    "ablation": (
        "none",
        HYPER,
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
    # Of multi-task problems. What has an option that is tuned in papers has as many candidates as static weights.
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
}


def members(name: str) -> list[str]:
    """The pipelines of a suite.

    >>> members("ablation")[:2]
    ['none', 'static(weights=[0.1, 0.5, 0.3, 0.4])']

    Raises:
        ConfigError: no suite is called so; says how to write a single pipeline.
    """
    if name not in SUITES:
        # `json.dumps`: quotes within a pipeline's text are escaped as TOML wants them.
        pipeline = json.dumps(name, ensure_ascii=False)
        hint = did_you_mean(name, SUITES) or f" A pipeline stands in a list: homogenizers = [{pipeline}]."
        raise ConfigError(f"`homogenizers`: no suite is called {name!r}; there are {', '.join(SUITES)}.{hint}")
    return list(SUITES[name])


def with_baselines(texts: Sequence[str]) -> list[str]:
    """The methods with the plain learner before them, and tuned static weights, where the list has none.

    The static weights added have as many candidates as the method that has most: equal weights, which are the plain
    learner, and weights drawn at random. A search has at least two, so that they have one more than methods of which
    nobody is tuned.

    >>> with_baselines(["pcgrad"])
    ['none', 'static | static(weights="random", seed=1)', 'pcgrad']

    Raises:
        ExpressionError: a text does not parse.
    """
    parsed = {text: expression.parse_alternatives(text) for text in texts}
    missing = [] if [[]] in parsed.values() else ["none"]
    if not any(len(found) > 1 and _is_static(found) for found in parsed.values()):
        count = max([2, *map(len, parsed.values())])
        drawn = [f'static(weights="random", seed={seed})' for seed in range(1, count)]
        missing.append(" | ".join(["static", *drawn]))
    return [*missing, *texts]


def _is_static(alternatives: Sequence[Sequence[expression.Member]]) -> bool:
    return all(len(members) == 1 and members[0][0].rpartition(":")[2] == "static" for members in alternatives)
