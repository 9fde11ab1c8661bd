"""The measurement `conflict`: train a learner, measure the conflict of domains at several steps, as tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradhomog.conflict import distance_bound, distances
from gradhomog.diagnosis import estimates
from gradhomog.diagnosis.estimates import MIN_BATCHES, UNRESOLVED, interval
from gradhomog.diagnosis.expected_gradients import ExpectedGradients, expected_gradients
from gradhomog.diagnosis.labelled_gramian import LabelledGramian
from gradhomog.diagnosis.learner_rows import FIRST_BATCH, encoder_blocks, independent_numbers
from gradhomog.diagnosis.row_store import COLUMNS, RowStore
from gradhomog.diagnosis.single_rows import SingleRows, single_rows
from gradhomog.errors import ConfigError
from gradhomog.experiments.episodes.sampler import EpisodeStream
from gradhomog.experiments.episodes.splits import streams
from gradhomog.experiments.execution.environment import threads
from gradhomog.experiments.results import atomic_files, checksums
from gradhomog.experiments.results.events import MAX_BYTES
from gradhomog.experiments.results.runs import Run
from gradhomog.experiments.run_file.schema import Config
from gradhomog.experiments.training.meta_learning import MetaLearning
from gradhomog.experiments.training.trainer import Snapshot, make_optimizer, restore_snapshot, take_snapshot
from gradhomog.files.regular import open_regular
from gradhomog.learners.learner import Learner
from gradhomog.learners.stage_rows import encoder_pattern, stage_rows
from gradhomog.table import NOTHING, Table


@dataclass(frozen=True, eq=False)
class StageConflict:
    """Rows after one homogenizer.

    Attributes:
        name: the homogenizer; `"plain"` for rows without homogenizers.
        single: means over single rows.
        expected: estimates about their expectations.
        largest_norm, largest_distance: of all rows, and of all pairs of rows.
    """

    name: str
    single: SingleRows
    expected: ExpectedGradients
    largest_norm: float
    largest_distance: float

    @classmethod
    def of(cls, name: str, gramian: LabelledGramian) -> StageConflict:
        products = gramian.gramian
        largest = float(products.diagonal().max()) ** 0.5, float(distances(products).max())
        return cls(name, single_rows(gramian), expected_gradients(gramian), *largest)

    @property
    def bound(self) -> float:
        """The corrected bound of Theorem 4.1 on the distance of two domains of different images: 2 G.

        Such domains have total variation 1, for which the first-order bound depends neither on the smoothness nor on
        the inner loop. G is estimated by the largest norm of a measured row, which includes the factors of
        differentiation through an inner loop. The bound then is the triangle inequality: no measurement can violate
        it, and the ratio of a distance to it reports how far the rows are from opposite.
        """
        return float(distance_bound(1.0, gradient_bound=self.largest_norm, smoothness=0, inner_lr=0, inner_steps=0))

    def record(self) -> dict[str, Any]:
        """Return the measurement for JSON."""
        return {
            "name": self.name,
            "single": estimates.record(self.single),
            "expected": estimates.record(self.expected),
            "largest_norm": self.largest_norm,
            "largest_distance": self.largest_distance,
            "bound": self.bound,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> StageConflict:
        """Return the measurement of `record`."""
        single = estimates.from_record(SingleRows, record["single"])
        expected = estimates.from_record(ExpectedGradients, record["expected"])
        return cls(record["name"], single, expected, record["largest_norm"], record["largest_distance"])


@dataclass(frozen=True, eq=False)
class DomainConflict:
    """The conflict of K domains at one point of training.

    Attributes:
        step: number of training steps before the measurement.
        domains: names `[K]`, in the order of all matrices.
        batches: number of batches that were measured.
        stages: `plain`, then the homogenizers in order.
    """

    step: int
    domains: tuple[str, ...]
    batches: int
    stages: tuple[StageConflict, ...]

    def record(self) -> dict[str, Any]:
        """Return the measurement for JSON."""
        stages = [stage.record() for stage in self.stages]
        return {"step": self.step, "domains": list(self.domains), "batches": self.batches, "stages": stages}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> DomainConflict:
        """Return the measurement of `record`."""
        stages = tuple(map(StageConflict.from_record, record["stages"]))
        return cls(record["step"], tuple(record["domains"]), record["batches"], stages)


RESULTS = "conflict.json"
CHECKPOINT = "conflict.pt"
VERSION = 1
"""Format version of `RESULTS`."""

Progress = Callable[[Mapping[str, Any]], None]


def measure_conflict(
    config: Config, steps: Sequence[int], batches: int, folder: Path, progress: Progress = lambda record: None
) -> list[DomainConflict]:
    """Train the first learner with the first pipeline and seed of a configuration; measure it after given steps.

    All points are measured on the same batches, which are not used in training. `folder/conflict.json` has all points
    so far; a checkpoint is written every `train.checkpoint_every` steps and at each point. A second call with the same
    configuration returns finished points and continues from the checkpoint.

    Args:
        config: its pipeline is that of training; the rows are measured before and after each of its homogenizers.
        steps: numbers of training steps before each measurement, increasing, >= 0.
        batches: number of measured batches, >= 3.
        progress: called with `{"event": "step", "step", "of"}` after training steps and `{"event": "batch", "batch",
            "of", "step"}` after measured batches.

    Returns:
        One measurement for each of `steps`.

    Cost: the training, and for each point `batches` times the rows of one batch for each homogenizer that acts before
    rows exist, and once more. Memory: see `measure_rows`.

    Source: Zhang et al. 2023 (RotoGBML), arXiv 2303.06679, figure 1. Deviation: the figure has norms and cosines of
    single rows, in which noise and conflict are not separated; expected gradients are estimated beside them.

    Raises:
        ConfigError: the folder has measurements of another configuration, or domains, tasks or batches are too few.
        GradhomogError: as in training.
    """
    run = Run(config.learners[0], config.homogenizers[0], config.seed_list[0])
    config = config.for_run(run.learner, run.homogenizers, run.seed)
    settings = {
        "config": config.result_settings(), "fingerprints": list(streams(config, run.seed).fingerprints.values()),
        "batches": batches, "tasks": "train", "columns": COLUMNS,
    }  # fmt: skip
    digest = checksums.content_digest(settings)[:12]
    found = _read_points(folder / RESULTS, digest)
    missing = [step for step in steps if step not in found]
    if not missing:
        return [found[step] for step in steps]
    folder.mkdir(parents=True, exist_ok=True)
    with threads(config.threads):
        trained = MetaLearning(config, run)
        optimizer = make_optimizer(config, trained)
        stream = measured_stream(trained)
        device = trained.learner.parameters()[0].device
        done = 0
        if (folder / CHECKPOINT).exists():
            with checksums.open_checkpoint(folder / CHECKPOINT, Snapshot) as state:
                if state["digest"] == digest and state["done"] <= missing[0]:
                    done = restore_snapshot(state, trained, optimizer, device)

        def save() -> None:
            checksums.write_checkpoint(folder / CHECKPOINT, take_snapshot(digest, done, trained, optimizer, device))

        for step in missing:
            while done < step:
                trained.step(done, optimizer, inspect=False)
                done += 1
                if done % config.train.checkpoint_every == 0:
                    save()
                progress({"event": "step", "step": done, "of": step})
            found[step] = measure_rows(trained.learner, stream, batches, step, progress)
            save()  # first: if the process ends between the two files, the last point is measured again
            records = [found[each].record() for each in sorted(found)]
            content = {"version": VERSION, "digest": digest, **settings, "points": records}
            atomic_files.write_bytes(folder / RESULTS, (json.dumps(content, ensure_ascii=False) + "\n").encode())
    return [found[step] for step in steps]


def measure_rows(
    learner: Learner, stream: EpisodeStream, batches: int, step: int = 0, progress: Progress = lambda record: None
) -> DomainConflict:
    """Measure norms, cosines, distances and conflict of the encoder's rows before and after each homogenizer.

    The rows are those of batches that training does not reach, with random numbers of learner and homogenizers that
    differ from batch to batch. Parameters, buffers, states of homogenizers and the global generators do not change, so
    rows of different batches are independent.

    Args:
        learner: with its pipeline; without homogenizers, the only stage is `plain`.
        stream: of the setting `"strong"`, with at least two domains and two tasks per batch. If it has more domains
            than tasks per batch, every batch has rows of some of the domains.
        batches: number of batches, >= 3; `expected_gradients` describes how intervals depend on it.
        step: number of training steps so far, for the report.

    Returns:
        The measurement. If the learner has no parameters `encoder.*`, it is about all parameters.

    Memory: 4 bytes · (homogenizers + 1) · batches · tasks · min(params, columns of `RowStore`), and that of
    `Learner.rows`.

    Raises:
        ConfigError: there are too few batches, domains or tasks. DataError: a row contains NaN or infinity.
    """
    if stream.setting != "strong" or len(stream.domains) < 2 or stream.tasks < 2 or batches < MIN_BATCHES:
        raise ConfigError(
            f'a conflict is measured in the setting "strong" with at least two domains, two tasks per batch and '
            f'{MIN_BATCHES} batches; got "{stream.setting}", {len(stream.domains)}, {stream.tasks} and {batches}.'
        )
    names = tuple(domain.name for domain in stream.domains)
    pattern = encoder_pattern(learner.named_parameters())
    device = learner.parameters()[0].device
    found: dict[int, tuple[str, RowStore]] = {}
    for index in range(batches):
        with independent_numbers(learner, index):
            batch = stream.batch(FIRST_BATCH + index).to(device)
            for position, (name, rows) in enumerate(stage_rows(learner, batch)):
                _, store = found.setdefault(position, (name, RowStore(names, COLUMNS)))
                store.add(encoder_blocks(rows, pattern), batch.domains)
        progress({"event": "batch", "batch": index + 1, "of": batches, "step": step})
    stages = tuple(StageConflict.of(name, rows.result()) for name, rows in found.values())
    return DomainConflict(step, names, batches, stages)


def measured_stream(trained: MetaLearning) -> EpisodeStream:
    """Return batches of new tasks of the training classes, in the strong setting and without augmentation."""
    like = trained.source.train
    return EpisodeStream(
        like.domains, split=like.split, ways=like.ways, shots=like.shots, queries=like.queries, tasks=like.tasks,
        setting="strong", seed=like.seed, channels=like.channels,
    )  # fmt: skip


def _read_points(path: Path, digest: str) -> dict[int, DomainConflict]:
    """The finished points by step."""
    if not path.exists():
        return {}
    try:
        with open_regular(path, MAX_BYTES, error=ConfigError) as file:
            content = json.load(file)
        current = (content["version"], content["digest"]) == (VERSION, digest)
        points = {record["step"]: DomainConflict.from_record(record) for record in content["points"] if current}
    except (ValueError, TypeError, KeyError, RecursionError) as cause:
        if isinstance(cause, ConfigError):
            raise
        raise ConfigError(f"{path} is not a measurement of conflict. Remove it to measure again.") from cause
    if not current:
        raise ConfigError(
            f"{path} is of another configuration or version, or of other data. Remove it, or choose another folder."
        )
    return points


NOTES = (
    "± is half of a 95 % interval (jackknife over batches). The first line of a step is without homogenizers.",
    f"{NOTHING}: a domain has no row in the measured batches. Measure more batches.",
    "norm ratio: largest / smallest mean norm of a domain. Cosines are means over pairs of different domains.",
    "cosine of E g: of the expected gradients, without noise; all domains pooled, weighted by their norms.",
    f"{UNRESOLVED}: the norm of an expected gradient cannot be distinguished from 0. Measure more batches.",
    "signal: ‖E g‖² / E‖g‖². conflict: pairs of rows of one batch with a negative inner product.",
    "independent: the same for rows of different batches, so by independent noise around the E g.",
    "if aligned: by noise alone if the E g had the same direction; mean over resolved pairs, normal approximation.",
    "distance: the largest distance of two rows / 2 G, with G the largest norm (Theorem 4.1, total variation 1).",
)


def render(points: Sequence[DomainConflict], remarks: Sequence[str] = ()) -> str:
    """All points as one table, the last point by domain and by pair of domains, and notes, with `remarks` first."""
    last = points[-1]
    title = f"Gradients of {len(last.domains)} domains, {last.batches} batches: {', '.join(last.domains)}"
    parts = [title, *stage_table(points).lines(), "", f"After {last.step} steps, by domain:"]
    parts += [*domain_table(last).lines(), "", f"After {last.step} steps, cosines by pair of domains:"]
    return "\n".join([*parts, *pair_table(last).lines(), "", *remarks, *NOTES])


def stage_table(points: Sequence[DomainConflict]) -> Table:
    """One row per point and stage."""
    header = ["step", "rows", "norm ratio", "cosine", "cosine of E g", "signal %", "conflict %", "independent %"]
    rows = []
    for point in points:
        for index, stage in enumerate(point.stages):
            single, expected = stage.single, stage.expected
            norms = single.norms.value
            aligned = expected.aligned_conflict_rates.value[~_diagonal(expected.cosines.value)].nanmean()
            rows.append(
                [
                    str(point.step) if index == 0 else "",
                    _label(index, stage),
                    NOTHING if norms.isnan().any() else f"{float(norms.max() / norms.min()):.2f}",
                    interval(single.mean_cosine),
                    interval(expected.pooled_cosine),
                    interval(expected.pooled_signal_fraction, percent=True),
                    interval(single.conflict_rate, percent=True),
                    interval(single.independent_conflict_rate, percent=True),
                    UNRESOLVED if aligned.isnan() else f"{100 * float(aligned):.1f}",
                    f"{stage.largest_distance / stage.bound:.2f}" if stage.bound else NOTHING,
                ]
            )
    return Table([*header, "if aligned %", "distance"], rows)


def domain_table(point: DomainConflict) -> Table:
    """One row per domain, with norms and signal before and after all homogenizers."""
    ends = _ends(point)
    header = ["domain"]
    for when in ("", " after")[: len(ends)]:
        header += [f"‖g‖{when}", f"‖E g‖{when}", f"signal %{when}"]
    rows = []
    for index, name in enumerate(point.domains):
        cells = [name]
        for stage in ends:
            expected = stage.expected
            cells += [interval(stage.single.norms, index), interval(expected.norms, index)]
            cells.append(interval(expected.signal_fractions, index, percent=True))
        rows.append(cells)
    return Table(header, rows)


def pair_table(point: DomainConflict) -> Table:
    """One row per pair of domains, with cosines of rows and of expectations before and after all homogenizers."""
    ends = _ends(point)
    header = ["pair"]
    for when in ("", " after")[: len(ends)]:
        header += [f"rows{when}", f"E g{when}"]
    rows = []
    for i, first in enumerate(point.domains):
        for j in range(i + 1, len(point.domains)):
            cells = [f"{first}, {point.domains[j]}"]
            for stage in ends:
                cells += [interval(stage.single.cosines, i, j), interval(stage.expected.cosines, i, j)]
            rows.append(cells)
    return Table(header, rows)


def _ends(point: DomainConflict) -> list[StageConflict]:
    """The rows before and after all homogenizers."""
    return [point.stages[0], point.stages[-1]] if len(point.stages) > 1 else [point.stages[0]]


def _label(index: int, stage: StageConflict) -> str:
    return f"+ {stage.name}" if index else stage.name


def _diagonal(matrix: Tensor) -> Tensor:
    return torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
