"""The rows of one batch after each homogenizer of a pipeline, at the same parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from gradhomog.global_state import restore_generators
from gradhomog.learners.results import TaskRows
from gradhomog.learners.tasks import TaskBatch
from gradhomog.rows import Jacobian
from gradhomog.step.pipelines import Pipeline


class ComputesRows(Protocol):
    """A learner: `rows` computes the rows of a batch, with the homogenizers of the pipeline that act before rows."""

    homogenizers: Pipeline

    def rows(self, batch: TaskBatch) -> TaskRows: ...


def stage_rows(learner: ComputesRows, batch: TaskBatch) -> Iterator[tuple[str, Jacobian]]:
    """Yield the rows of one batch without homogenizers, with the first, with the first two, and so on, with a name.

    The first name is `"plain"`, the others are those of the homogenizers. All stages use the same random numbers;
    learner and homogenizers do not change.

    Cost: one `rows` for each homogenizer that acts before rows exist, and one more.
    """
    whole = learner.homogenizers
    for count in range(len(whole) + 1):
        first = Pipeline(whole.members[:count], whole.nonfinite)
        first.steps = whole.steps  # random numbers are a function of the step count
        if count == 0 or whole.members[count - 1].before_rows:
            learner.homogenizers = first
            try:
                with restore_generators():  # dropout in the network draws the same numbers every time
                    rows = learner.rows(batch)
            finally:
                learner.homogenizers = whole
        name = whole.members[count - 1].selector if count else "plain"
        yield name, first.rows_after(
            rows.jacobian, rows.losses, domains=batch.domains or None, features=rows.features,
            feature_grads=rows.feature_grads, targets=batch.query_y,
        )  # fmt: skip


def encoder_pattern(names: Iterable[str]) -> str:
    """Return the glob of the encoder's parameters, or of all parameters if none of the names is `encoder.*`."""
    return "encoder.*" if any(name.startswith("encoder.") for name in names) else "*"
