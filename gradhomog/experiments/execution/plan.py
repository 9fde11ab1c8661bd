"""What a comparison has to run: every method with every seed, and the candidates of methods that are tuned."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Literal

from gradhomog import expression
from gradhomog.errors import ConfigError, GradhomogError
from gradhomog.experiments import problems
from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.results.events import SINGLE
from gradhomog.pipelines import pipeline
from gradhomog.registry import installed


@dataclass(frozen=True)
class Method:
    """One row of the table: a learner with a pipeline, or with several of which validation chooses one.

    Attributes:
        learner: text, e.g. `"maml"`.
        label: `"plain"`, the pipeline's text, or its names and `(tuned)`; `"single-task"` for a multi-task problem's
            networks of one task each.
        candidates: texts of pipelines; one, if nothing is tuned.
    """

    learner: str
    label: str
    candidates: tuple[str, ...]

    @property
    def tuned(self) -> bool:
        return len(self.candidates) > 1


@dataclass(frozen=True)
class Run:
    """One training with one seed, and its test."""

    learner: str
    label: str
    homogenizers: str
    seed: int
    role: Literal["compare", "candidate"] = "compare"

    @property
    def id(self) -> str:
        """A folder name that tells what was run, unique within a comparison."""
        name = re.sub(r"[^A-Za-z0-9]+", "-", f"{self.learner}-{self.homogenizers}").strip("-").lower()[:40]
        digest = hashlib.sha256(f"{self.learner}/{self.label}/{self.homogenizers}".encode()).hexdigest()[:6]
        return f"{name}-{digest}-s{self.seed}"


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
                found.append(Method(learner, SINGLE, ("none",)))
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


def distributions(config: Config, rows: list[Method]) -> dict[str, str]:
    """The distributions, with versions, that the pipelines and learners of a comparison come from."""
    found = [m.info for row in rows for text in row.candidates for m in pipeline(text).members]
    if config.problem is None:
        found += [installed().find("learners", expression.parse_one(learner)[0]) for learner in config.learners]
    return {info.distribution: info.version for info in found if info is not None}


def first_runs(config: Config, rows: list[Method]) -> list[Run]:
    """All runs that do not wait for a tuning: candidates with the first seed, then everything else seed by seed."""
    seeds = config.seed_list
    tuning = [
        Run(row.learner, row.label, candidate, seeds[0], "candidate")
        for row in rows
        if row.tuned
        for candidate in row.candidates
    ]
    plain = [Run(row.learner, row.label, row.candidates[0], seed) for seed in seeds for row in rows if not row.tuned]
    return tuning + plain


def tuned_runs(config: Config, row: Method, chosen: str) -> list[Run]:
    """The runs of a tuned method; the one with the first seed is the chosen candidate's own."""
    return [Run(row.learner, row.label, chosen, seed) for seed in config.seed_list]
