"""The methods of a comparison: the pipelines of its configuration, validated and labelled."""

from __future__ import annotations

import itertools
from collections import Counter

from gradhomog.errors import ConfigError, GradhomogError, join_errors
from gradhomog.experiments import content
from gradhomog.experiments.results.runs import SINGLE, Method
from gradhomog.experiments.run_file.schema import Config
from gradhomog.registry import expression
from gradhomog.step.pipelines import pipeline


def make_methods(config: Config) -> list[Method]:
    """Return the rows of the comparison's table, in the configuration's order.

    Constructs every pipeline once: invalid names and options raise before the first training starts.

    Raises:
        ConfigError: names are unknown, options invalid, texts do not parse, or two rows are equal; lists all errors.
    """
    rows: list[Method] = []
    errors: list[str] = []
    for learner in config.learners:
        for text in config.homogenizers:
            if config.problem is not None and text.strip() == SINGLE:
                if not content.find_problem(config.problem["name"]).single_task:
                    errors.append(f"{SINGLE!r} does not apply to {learner}; remove it.")
                rows.append(Method(learner, SINGLE, (SINGLE,)))
                continue
            try:
                alternatives = expression.parse_alternatives(text)
                candidates = tuple(str(pipeline(expression.render(members))) for members in alternatives)
            except GradhomogError as cause:
                errors += _member_errors(text) or [str(cause)]
                continue
            names = dict.fromkeys(" + ".join(name for name, _ in members) or "none" for members in alternatives)
            label = f"{' | '.join(names)} (tuned)" if len(candidates) > 1 else candidates[0]
            if len(set(candidates)) < len(candidates):
                errors.append(f"{text!r} contains a candidate twice.")
            rows.append(Method(learner, "plain" if label == "none" else label, candidates))
    for (learner, label), count in Counter((method.learner, method.label) for method in rows).items():
        if count > 1:
            errors.append(f"{label!r} occurs twice for {learner}; labels of table rows must be unique.")
    if errors:
        raise ConfigError(f"`homogenizers`: {join_errors(errors)}")
    return rows


def _member_errors(text: str) -> list[str]:
    """Return the errors of all homogenizers in a text; the error of the whole pipeline names only the first."""
    try:
        alternatives = expression.parse_alternatives(text)
    except GradhomogError as cause:
        return [str(cause)]
    errors = []
    for member in itertools.chain.from_iterable(alternatives):
        try:
            pipeline(expression.render([member]))
        except GradhomogError as cause:
            errors.append(str(cause))
    return errors
