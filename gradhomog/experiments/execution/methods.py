"""The methods of a comparison: the pipelines of its configuration, validated and labelled; those of wrong weights."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gradhomog.errors import ConfigError, GradhomogError, join_errors
from gradhomog.experiments.run_file import content
from gradhomog.experiments.run_file.schema import Config
from gradhomog.experiments.runs import PLAIN, SINGLE, Method, Run
from gradhomog.experiments.training.meta_learning import MetaLearning
from gradhomog.experiments.training.trainer import make_trainable
from gradhomog.registry import expression
from gradhomog.step.pipelines import pipeline


def make_methods(config: Config) -> list[Method]:
    """Return the rows of the comparison's table, in the configuration's order.

    Constructs every pipeline once: invalid names and options raise before the first training starts.

    Raises:
        ConfigError: names are unknown, options invalid, texts do not parse, or two rows are equal; lists all errors.
    """
    errors: list[str] = []
    rows = [_method(config, learner, text, errors) for learner in config.learners for text in config.homogenizers]
    counts = Counter((row.learner, row.label) for row in rows if row is not None)
    errors += [
        f"{label!r} occurs twice for {learner}; labels of table rows must be unique."
        for (learner, label), count in counts.items()
        if count > 1
    ]
    if errors:
        raise ConfigError(f"`homogenizers`: {join_errors(errors)}")
    return [row for row in rows if row is not None]


def _method(config: Config, learner: str, text: str, errors: list[str]) -> Method | None:
    """The row of a text of `homogenizers`; None, with its errors appended, if it has no label."""
    if config.problem is not None and text.strip() == SINGLE:
        if not content.find_problem(config.problem["name"]).single_task:
            errors.append(f"{SINGLE!r} does not apply to {learner}; remove it.")
        return Method(learner, SINGLE, [SINGLE])
    alternatives: list[list[expression.Member]] = []
    try:
        alternatives = expression.parse_alternatives(text)
        candidates = [str(pipeline(expression.render(members))) for members in alternatives]
    except GradhomogError as cause:
        errors += _member_errors(alternatives) or [str(cause)]
        return None
    if len(set(candidates)) < len(candidates):
        errors.append(f"{text!r} contains a candidate twice.")
    if len(candidates) == 1:
        return Method(learner, PLAIN if candidates == ["none"] else candidates[0], candidates)
    names = dict.fromkeys(" + ".join(name for name, _ in members) or "none" for members in alternatives)
    return Method(learner, f"{' | '.join(names)} (tuned)", candidates)


def _member_errors(alternatives: Sequence[Sequence[expression.Member]]) -> list[str]:
    """Return the errors of all homogenizers of a text; the error of the whole pipeline names only the first."""
    errors = []
    for member in itertools.chain.from_iterable(alternatives):
        try:
            pipeline(expression.render([member]))
        except GradhomogError as cause:
            errors.append(str(cause))
    return errors


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
    trainable: Any = make_trainable(config.for_run(run), run)
    episodic = isinstance(trainable, MetaLearning)
    task = trainable.source.train.domains[0].name if episodic else trainable.tasks[0]
    methods = list(filter(takes_misscaled_losses, config.homogenizers))
    scaled = [misscaled(text, task, factor) for text in methods for factor in FACTORS]
    return dataclasses.replace(config, homogenizers=[*config.homogenizers, *scaled])
