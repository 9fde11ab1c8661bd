"""Wrong loss weights: the methods of a comparison for users who multiplied the loss of the first task."""

from __future__ import annotations

import dataclasses
from typing import Any

from gradhomog.experiments.results.runs import SINGLE, Run
from gradhomog.experiments.run_file.schema import Config
from gradhomog.experiments.training.meta_learning import MetaLearning
from gradhomog.experiments.training.trainer import make_trainable
from gradhomog.registry import expression
from gradhomog.step.pipelines import pipeline

FACTORS = (0.01, 100.0)
"""Factors of the first loss."""


def misscaled(text: str, task: str, factor: float) -> str:
    """The pipeline for a user who multiplied the loss of one task by `factor`.

    >>> misscaled("pcgrad", "pde", 100.0)
    'static(weights={"*": 1.0, "pde": 100.0}) + pcgrad'
    """
    return expression.render([("static", {"weights": {"*": 1.0, task: factor}}), *expression.parse(text)])


def takes_misscaled_losses(text: str) -> bool:
    """False for tuned methods, which find the weights again; for methods such as `tracked`, and for each task alone."""
    if text.strip() == SINGLE or len(expression.parse_alternatives(text)) > 1:
        return False
    return not pipeline(text).requirements.choosing  # of a step with one row, no weight has an effect


def with_misscaled_losses(config: Config) -> Config:
    """The same comparison with further rows of each method, with the first loss times 0.01 and times 100.

    The first task is that of the problem, or the first domain of training.

    Raises:
        GradhomogError: a pipeline or the data are invalid.
    """
    run = Run(config.learners[0], "none", config.seed_list[0])
    trainable: Any = make_trainable(config.for_run(run.learner, run.homogenizers, run.seed), run)
    episodic = isinstance(trainable, MetaLearning)
    task = trainable.source.train.domains[0].name if episodic else trainable.tasks[0]
    methods = list(filter(takes_misscaled_losses, config.homogenizers))
    scaled = [misscaled(text, task, factor) for text in methods for factor in FACTORS]
    return dataclasses.replace(config, homogenizers=[*config.homogenizers, *scaled])
