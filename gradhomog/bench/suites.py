"""Named lists of methods: what a run file means by `homogenizers = "ablation"`."""

from __future__ import annotations

import difflib
import json

from gradhomog.errors import ConfigError

TUNED_STATIC = 'static | static(weights="random", seed=1) | static(weights="random", seed=2)'
GRADNORM = 'gradnorm(key="domain", initial_loss=1.609)'  # the log of 5 classes
HYPER = "static(weights=[0.1, 0.5, 0.3, 0.4])"  # the paper's fixed weights, for four tasks a batch (section 6.3)
REWEIGHT = 'reweight(beta=1.5, solver="fixed_point")'  # 1.5: the paper's β for strong OOD

SUITES: dict[str, tuple[str, ...]] = {
    "default": ("none", TUNED_STATIC, "pcgrad", GRADNORM, "mgda"),
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
}


def members(name: str) -> list[str]:
    """The pipelines of a suite.

    >>> members("ablation")[:2]
    ['none', 'static(weights=[0.1, 0.5, 0.3, 0.4])']

    Raises:
        ConfigError: no suite is called so; says how to write a single pipeline.
    """
    if name not in SUITES:
        near = difflib.get_close_matches(name.lower(), SUITES, n=1)
        # `json.dumps`: quotes within a pipeline's text are escaped as TOML wants them.
        pipeline = json.dumps(name, ensure_ascii=False)
        hint = f" Did you mean '{near[0]}'?" if near else f" A pipeline stands in a list: homogenizers = [{pipeline}]."
        raise ConfigError(f"`homogenizers`: no suite is called {name!r}; there are {', '.join(SUITES)}.{hint}")
    return list(SUITES[name])
