"""Methods and runs of a comparison, and the selection of a tuned method's candidate by validation."""

import hashlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import MinLen

from gradhomog.experiments.score_metrics import metric

PLAIN = "plain"
"""The label of the plain learner (without homogenizers), the baseline of the table."""

SINGLE = "single-task"
"""The label of the multi-task baseline that trains a separate network for each task."""


@dataclass(frozen=True)
class Method:
    """One row of the table: a learner with one pipeline, or with several candidates of which validation selects one.

    Attributes:
        learner: text, e.g. `"maml"`.
        label: `"plain"`, the text of the pipeline, or for a tuned method the candidates' names and `(tuned)`;
            `"single-task"` for a separate network per task of a multi-task problem.
        candidates: texts of pipelines; exactly one if the method is not tuned.
    """

    learner: str
    label: str
    candidates: Annotated[list[str], MinLen(1)]

    @property
    def tuned(self) -> bool:
        return len(self.candidates) > 1


@dataclass(frozen=True)
class Run:
    """One training with one seed, and its test. Methods with the same learner and pipeline share their runs.

    Attributes:
        homogenizers: the text of a pipeline, or `"single-task"`.
    """

    learner: str
    homogenizers: str
    seed: int

    @property
    def id(self) -> str:
        """The name of the run's folder: learner, pipeline and seed, unique within a comparison."""
        name = re.sub(r"[^A-Za-z0-9]+", "-", f"{self.learner}-{self.homogenizers}").strip("-").lower()[:40]
        digest = hashlib.sha256(f"{self.learner}/{self.homogenizers}".encode()).hexdigest()[:6]
        return f"{name}-{digest}-s{self.seed}"

    @property
    def identity(self) -> dict[str, Any]:
        """The entries that identify the run in records."""
        return {"run": self.id, "learner": self.learner, "homogenizers": self.homogenizers, "seed": self.seed}


def decided_runs(
    rows: Sequence[Method], seeds: Sequence[int], results: Mapping[str, Any], failed: Collection[str]
) -> list[Run]:
    """Return all runs whose pipeline is known, in the order of computation.

    First all candidates of tuned methods with the first seed; then, seed by seed, the methods that are not tuned and
    the tuned methods whose candidate is selected.

    Args:
        results: results of the finished runs, by `Run.id`.
        failed: ids of the failed runs; failed candidates are excluded from the selection.
    """
    tuning = [Run(row.learner, text, seeds[0]) for row in rows if row.tuned for text in row.candidates]
    selected = [(row, chosen_candidate(row, seeds[0], results, failed)) for row in rows]
    training = [Run(row.learner, text, seed) for seed in seeds for row, text in selected if text is not None]
    return list(dict.fromkeys(tuning + training))


def chosen_candidate(row: Method, seed: int, results: Mapping[str, Any], failed: Collection[str] = ()) -> str | None:
    """Return the pipeline of a method; for a tuned method, the candidate with the best validation score.

    Scores are those of the runs with `seed`, the first seed; of equal scores, the first candidate is returned. None if
    a candidate has neither finished nor failed, or if all candidates have failed.
    """
    if not row.tuned:
        return row.candidates[0]
    ids = {text: Run(row.learner, text, seed).id for text in row.candidates}
    if any(id not in results and id not in failed for id in ids.values()):
        return None
    finished = [text for text in row.candidates if ids[text] in results]
    return max(finished, key=lambda text: _rank(results[ids[text]]), default=None)


def _rank(result: Mapping[str, Any]) -> float:
    """Return a number that is larger for better validation scores; -inf for a non-finite score (null in a file)."""
    score = result["validation"]
    if score is None or not math.isfinite(score):
        return -math.inf
    return float(score if metric(result["metric"]).higher_is_better else -score)
