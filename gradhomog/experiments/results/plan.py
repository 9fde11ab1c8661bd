"""What a comparison is made of: methods, their runs, and which candidate of a tuned method is taken."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradhomog.experiments.analysis.metrics import metric

PLAIN = "plain"
"""The label of the learner without homogenizers, to which all others are compared."""

SINGLE = "single-task"
"""The label of a network for each task of a multi-task problem, trained alone."""


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
    """One training with one seed, and its test. Methods that are made of the same pipeline share it.

    `homogenizers` is the text of a pipeline, or `"single-task"`.
    """

    learner: str
    homogenizers: str
    seed: int

    @property
    def id(self) -> str:
        """The name of its folder, which tells what was run; unique within a comparison."""
        name = re.sub(r"[^A-Za-z0-9]+", "-", f"{self.learner}-{self.homogenizers}").strip("-").lower()[:40]
        digest = hashlib.sha256(f"{self.learner}/{self.homogenizers}".encode()).hexdigest()[:6]
        return f"{name}-{digest}-s{self.seed}"

    @property
    def identity(self) -> dict[str, Any]:
        """What records say of it."""
        return {"run": self.id, "learner": self.learner, "homogenizers": self.homogenizers, "seed": self.seed}


def runs(
    rows: Sequence[Method], seeds: Sequence[int], results: Mapping[str, Any], failed: Collection[str]
) -> list[Run]:
    """All runs that are decided: candidates with the first seed, then seed by seed what is tuned no more or never was.

    Args:
        results: by `Run.id`, of those that are finished.
        failed: ids of those that failed, which leave the choice to the other candidates.
    """
    tuning = [Run(row.learner, text, seeds[0]) for row in rows if row.tuned for text in row.candidates]
    taken = [(row, choice(row, seeds[0], results, failed)) for row in rows]
    decided = [Run(row.learner, text, seed) for seed in seeds for row, text in taken if text is not None]
    return list(dict.fromkeys(tuning + decided))


def choice(row: Method, seed: int, results: Mapping[str, Any], failed: Collection[str] = ()) -> str | None:
    """The pipeline of a method: of several the one whose run with the first seed has the best validation score, the
    first of equal ones. None while one of them is neither finished nor failed, or if all failed."""
    if not row.tuned:
        return row.candidates[0]
    ids = {text: Run(row.learner, text, seed).id for text in row.candidates}
    if any(id not in results and id not in failed for id in ids.values()):
        return None
    done = [text for text in row.candidates if ids[text] in results]
    return max(done, key=lambda text: _rank(results[ids[text]]), default=None)


def _rank(result: Mapping[str, Any]) -> float:
    """Larger is better; a score that is not finite (null in a file) is worst."""
    score = result["validation"]
    if score is None or not math.isfinite(score):
        return -math.inf
    return float(score if metric(result["metric"]).higher_is_better else -score)
