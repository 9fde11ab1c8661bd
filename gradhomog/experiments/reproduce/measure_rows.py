"""Measure the conflict of domains in the rows of a learner, at its present parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from annotated_types import Ge

from gradhomog.diagnosis.estimates import MIN_BATCHES
from gradhomog.diagnosis.learner_rows import FIRST_BATCH, encoder_blocks, independent_numbers
from gradhomog.diagnosis.row_store import COLUMNS, RowStore
from gradhomog.errors import OptionError
from gradhomog.experiments.data.sampler import EpisodeStream
from gradhomog.experiments.reproduce.domain_conflict import DomainConflict, StageConflict
from gradhomog.learners.learner import Learner
from gradhomog.learners.stage_rows import encoder_pattern, stage_rows
from gradhomog.registry.annotated_values import validated


@validated
def measure_rows(
    learner: Learner,
    stream: EpisodeStream,
    batches: Annotated[int, Ge(MIN_BATCHES)],
    *,
    step: int = 0,
    start: int = FIRST_BATCH,
    columns: int = COLUMNS,
    progress: Callable[[int], None] = lambda batch: None,
) -> DomainConflict:
    """Measure norms, cosines, distances and conflict of the encoder's rows before and after each homogenizer.

    The rows are those of the batches `start`, `start + 1`, … of the stream, with random numbers of learner and
    homogenizers that differ from batch to batch. Parameters, buffers, states of homogenizers and the global generators
    do not change, so rows of different batches are independent.

    Args:
        learner: with its pipeline; without homogenizers, the only stage is `plain`.
        stream: of the setting `"strong"`, with at least two domains and two tasks per batch. If it has more domains
            than tasks per batch, every batch has rows of some of the domains.
        batches: number of batches, >= 3; `expected_gradients` describes how intervals depend on it.
        step: number of training steps so far, for the report.
        columns: see `RowStore`.
        progress: called with the number of batches so far.

    Returns:
        The measurement. If the learner has no parameters `encoder.*`, it is about all parameters.

    Memory: 4 bytes · (homogenizers + 1) · batches · tasks · min(params, columns), and that of `Learner.rows`.

    Raises:
        OptionError: the stream has one domain, one task per batch or the setting `"weak"`, or there are too few
            batches. DataError: a row contains NaN or infinity.
    """
    if stream.setting != "strong" or len(stream.domains) < 2 or stream.tasks < 2:
        raise OptionError(
            '`stream` must have the setting "strong", two or more domains and two or more tasks per batch; got '
            f'"{stream.setting}", {len(stream.domains)} and {stream.tasks}.'
        )
    names = tuple(domain.name for domain in stream.domains)
    pattern = encoder_pattern(learner.named_parameters())
    device = learner.parameters()[0].device
    found: list[tuple[str, RowStore]] = []
    for index in range(batches):
        with independent_numbers(learner, index):
            batch = stream.batch(start + index).to(device)
            for position, (name, rows) in enumerate(stage_rows(learner, batch)):
                if position == len(found):
                    found.append((name, RowStore(names, columns)))
                found[position][1].add(encoder_blocks(rows, pattern), batch.domains)
        progress(index + 1)
    stages = tuple(StageConflict.of(name, rows.result()) for name, rows in found)
    return DomainConflict(step, names, batches, stages)
