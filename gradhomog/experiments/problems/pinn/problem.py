"""The specification of a physics-informed problem: defaults of the run file."""

from __future__ import annotations

from typing import Any

from gradhomog.experiments.config.suites import suite_pipelines
from gradhomog.experiments.problems.pinn.equation import Equation
from gradhomog.experiments.problems.pinn.trainable import Pinn
from gradhomog.experiments.problems.spec import EPISODIC, ProblemSpec


def pinn_problem(equation: Equation, options: type[Any]) -> ProblemSpec:
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
            "homogenizers": suite_pipelines("pinn"),
            "network": {"width": 50},
            "train": {
                "steps": 5000, "outer_lr": 0.001, "lr_decay": 0.9, "lr_decay_every": 1000, "validate_every": 500,
                "log_every": 100, "checkpoint_every": 1000,
            },
        },
        unused_keys=(*EPISODIC, "network.name", "network.size"),
        has_single_task=False,
    )  # fmt: skip
