"""The methods of a comparison: the pipelines of its configuration, checked and labelled."""

from __future__ import annotations

from collections.abc import Sequence

from gradhomog import expression
from gradhomog.errors import ConfigError, GradhomogError
from gradhomog.experiments import problems
from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.results.plan import SINGLE, Method
from gradhomog.pipelines import pipeline
from gradhomog.registry import installed


def methods(config: Config) -> list[Method]:
    """The rows of the comparison, in the configuration's order.

    Makes every pipeline once, so that a wrong name or option is an error before anything is trained.

    Raises:
        ConfigError: a name is unknown, an option wrong, a text does not parse, or two rows are the same.
    """
    found: list[Method] = []
    for learner in config.learners:
        for text in config.homogenizers:
            if config.problem is not None and text.strip() == SINGLE:
                if not problems.find(config.problem.name).single:
                    raise ConfigError(f"`homogenizers`: {SINGLE!r} means nothing on {learner}; leave it out.")
                found.append(Method(learner, SINGLE, (SINGLE,)))
                continue
            try:
                alternatives = expression.parse_alternatives(text)
                candidates = tuple(str(pipeline(expression.render(members))) for members in alternatives)
            except GradhomogError as cause:
                raise ConfigError(f"`homogenizers`: {cause}") from cause
            names = dict.fromkeys(" + ".join(name for name, _ in members) or "none" for members in alternatives)
            label = f"{' | '.join(names)} (tuned)" if len(candidates) > 1 else candidates[0]
            if len(set(candidates)) < len(candidates):
                raise ConfigError(f"`homogenizers`: {text!r} names a candidate twice.")
            found.append(Method(learner, "plain" if label == "none" else label, candidates))
    labels = [(method.learner, method.label) for method in found]
    for pair in labels:
        if labels.count(pair) > 1:
            raise ConfigError(
                f"`homogenizers` names {pair[1]!r} twice for {pair[0]}; the table could not tell them apart."
            )
    return found


def distributions(config: Config, rows: Sequence[Method]) -> dict[str, str]:
    """The distributions, with versions, that the pipelines and learners of a comparison come from."""
    texts = [text for row in rows for text in row.candidates if text != SINGLE]
    found = [m.info for text in texts for m in pipeline(text).members]
    if config.problem is None:
        found += [installed().find("learners", expression.parse_one(learner)[0]) for learner in config.learners]
    return {info.distribution: info.version for info in found if info is not None}
