"""The methods of a comparison: the pipelines of its configuration, checked and labelled."""

from __future__ import annotations

import itertools
from collections import Counter

from gradhomog import expression
from gradhomog.errors import ConfigError, GradhomogError
from gradhomog.experiments import problems
from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.results.plan import SINGLE, Method
from gradhomog.faults import join_faults
from gradhomog.pipelines import pipeline


def methods(config: Config) -> list[Method]:
    """The rows of the comparison, in the configuration's order.

    Makes every pipeline once, so that wrong names and options are an error before anything is trained.

    Raises:
        ConfigError: names are unknown, options wrong, texts do not parse, or two rows are the same; it names all.
    """
    found: list[Method] = []
    faults: list[str] = []
    for learner in config.learners:
        for text in config.homogenizers:
            if config.problem is not None and text.strip() == SINGLE:
                if not problems.find(config.problem.name).single:
                    faults.append(f"{SINGLE!r} means nothing on {learner}; leave it out.")
                found.append(Method(learner, SINGLE, (SINGLE,)))
                continue
            try:
                alternatives = expression.parse_alternatives(text)
                candidates = tuple(str(pipeline(expression.render(members))) for members in alternatives)
            except GradhomogError as cause:
                faults += _member_faults(text) or [str(cause)]
                continue
            names = dict.fromkeys(" + ".join(name for name, _ in members) or "none" for members in alternatives)
            label = f"{' | '.join(names)} (tuned)" if len(candidates) > 1 else candidates[0]
            if len(set(candidates)) < len(candidates):
                faults.append(f"{text!r} names a candidate twice.")
            found.append(Method(learner, "plain" if label == "none" else label, candidates))
    for (learner, label), count in Counter((method.learner, method.label) for method in found).items():
        if count > 1:
            faults.append(f"{label!r} is named twice for {learner}; the table could not tell them apart.")
    if faults:
        raise ConfigError(f"`homogenizers`: {join_faults(faults)}")
    return found


def _member_faults(text: str) -> list[str]:
    """What is wrong with each member of a text by itself: a pipeline's own error names the first only."""
    try:
        alternatives = expression.parse_alternatives(text)
    except GradhomogError as cause:
        return [str(cause)]
    faults = []
    for member in itertools.chain.from_iterable(alternatives):
        try:
            pipeline(expression.render([member]))
        except GradhomogError as cause:
            faults.append(str(cause))
    return faults
