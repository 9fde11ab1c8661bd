"""The rows of a learner: after each homogenizer, and for independent batches, without changing the learner."""

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any, Protocol, runtime_checkable

import torch
from annotated_types import Ge
from torch import Tensor

from gradhomog.diagnosis.diagnosis import Diagnosis
from gradhomog.diagnosis.estimates import MIN_BATCHES
from gradhomog.diagnosis.result import DiagnosisResult
from gradhomog.errors import DataError
from gradhomog.global_state import restore_generators
from gradhomog.learners.results import TaskRows
from gradhomog.learners.tasks import Task, TaskBatch
from gradhomog.registry.options import validated
from gradhomog.rows import Jacobian, as_jacobian
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.step import Step


class ComputesRows(Protocol):
    """A learner: `rows` computes the rows of a batch, with the homogenizers of the pipeline that act before rows."""

    homogenizers: Pipeline

    def rows(self, batch: TaskBatch) -> TaskRows: ...
    def named_parameters(self) -> Mapping[str, Tensor]: ...


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
        jacobian = as_jacobian(rows.jacobian)
        step = Step(batch.keys, jacobian, rows.losses, rows.features, rows.feature_grads, batch.query_y)
        yield name, first.compute(step).rows


def encoder_pattern(names: Iterable[str]) -> str:
    """Return the glob of the encoder's parameters, or of all parameters if none of the names is `encoder.*`."""
    return "encoder.*" if any(name.startswith("encoder.") for name in names) else "*"


FIRST_BATCH = 10**9
"""Index of the first measured batch: training does not reach it, so the parameters do not depend on measured tasks."""

WITHOUT_DOMAIN = "tasks"
"""The label of all rows of a batch without domains: its tasks are a sample of one distribution."""


@runtime_checkable
class BatchStream(Protocol):
    """Batches of tasks by index; batches of different indices are independent."""

    def batch(self, index: int) -> TaskBatch: ...


@validated
def diagnose(
    learner: ComputesRows, stream: BatchStream | Iterable[Any], batches: Annotated[int, Ge(MIN_BATCHES)]
) -> DiagnosisResult:
    """Diagnose the encoder's rows without homogenizers; see `Learner.diagnose`.

    Raises:
        OptionError: there are fewer than three batches. DataError: the stream is one batch, contains single tasks, or
            ends early.
    """
    if isinstance(stream, TaskBatch):
        raise DataError("`stream` must be a stream or an iterable of task batches; got one task batch.")
    if isinstance(stream, BatchStream):
        found: Iterable[Any] = (stream.batch(FIRST_BATCH + index) for index in range(batches))
    else:
        found = islice(stream, batches)
    diagnosis, measured = Diagnosis(), 0
    for index, batch in enumerate(found):
        if isinstance(batch, Task):
            raise DataError("`stream` must contain batches of tasks; got a task. Pass a sequence of tasks per batch.")
        tasks = batch if isinstance(batch, TaskBatch) else TaskBatch.stack(batch)
        with independent_numbers(learner, index):
            rows = plain_rows(learner, tasks)
        diagnosis.add(rows, tasks.domains or (WITHOUT_DOMAIN,) * len(tasks))
        measured = index + 1
    if measured < batches:
        raise DataError(
            f"`stream` must have {batches} batches; got {measured}. Pass a longer stream, or batches={measured} if "
            f"that is at least {MIN_BATCHES}."
        )
    return diagnosis.result()


def plain_rows(learner: ComputesRows, batch: TaskBatch) -> dict[str, Tensor]:
    """Return the encoder's rows of one batch without homogenizers, by parameter."""
    named = learner.named_parameters()
    device = next(iter(named.values())).device
    _, rows = next(stage_rows(learner, batch.to(device)))
    pattern = encoder_pattern(named)
    return {name: block for name, block in rows.by_parameter() if fnmatch.fnmatchcase(name, pattern)}


@contextmanager
def independent_numbers(learner: ComputesRows, index: int) -> Iterator[None]:
    """Context in which learner and homogenizers draw the random numbers of measured batch `index`.

    Within it the learner has a copy of its pipeline that raises errors for rows that are not finite. Afterwards the
    pipeline and the global generators are restored.
    """
    whole = learner.homogenizers
    try:
        with restore_generators():
            # "drop" would leave rows out without a report. Random numbers are a function of the number of steps.
            learner.homogenizers = Pipeline(whole.members, "raise")
            learner.homogenizers.steps = whole.steps + index
            torch.manual_seed(FIRST_BATCH + index)
            yield
    finally:
        learner.homogenizers = whole
