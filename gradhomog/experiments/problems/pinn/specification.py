"""Make the specification of a physics-informed problem from its equation."""

from __future__ import annotations

from typing import Any

from gradhomog.experiments.config.suites import PINN_STATIC, pinn_static, suite_pipelines
from gradhomog.experiments.problems.pinn.equation import Equation
from gradhomog.experiments.problems.pinn.trainable import Pinn
from gradhomog.experiments.problems.spec import EPISODIC, ProblemSpec


def specification(equation: Equation, options: type[Any]) -> ProblemSpec:
    """Return the specification of a problem; the defaults are the settings of DCGD for a tenth of its steps.

    Args:
        equation: the equation.
        options: dataclass of `[problem]`, a subclass of `PinnOptions`.
    """
    return ProblemSpec(
        name=options().name,
        options=options,
        trainable=lambda config, run: Pinn(config, run, equation),
        defaults={
            "network": {"width": 50},
            "train": {
                "steps": 5000, "outer_lr": 0.001, "lr_decay": 0.9, "lr_decay_every": 1000, "validate_every": 500,
                "log_every": 100, "checkpoint_every": 1000,
            },
        },
        option_defaults=lambda chosen: {"homogenizers": _default_methods(len(equation.tasks(chosen)) - 1)},
        unused_keys=(*EPISODIC, "network.name", "network.size"),
        has_single_task=False,
    )  # fmt: skip


def _default_methods(conditions: int) -> list[str]:
    """The default suite, with static weights for as many tasks as the problem has."""
    return [pinn_static(conditions) if text == PINN_STATIC else text for text in suite_pipelines("pinn")]
