"""Figure 1 of RotoGBML as a measurement: train a learner, and measure the conflict of domains at several steps."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, MinLen

from gradhomog.diagnosis.row_store import COLUMNS
from gradhomog.errors import ConfigError, OptionError
from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.data.sampler import EpisodeStream
from gradhomog.experiments.data.splits import Streams, streams
from gradhomog.experiments.execution.threads import threads
from gradhomog.experiments.reproduce.domain_conflict import DomainConflict
from gradhomog.experiments.reproduce.measure_rows import measure_rows
from gradhomog.experiments.results import atomic_files, checksums
from gradhomog.experiments.results.events import MAX_BYTES
from gradhomog.experiments.results.plan import Run
from gradhomog.experiments.training.meta_learning import MetaLearning
from gradhomog.experiments.training.snapshot import Snapshot, restore_snapshot, take_snapshot
from gradhomog.experiments.training.trainer import make_optimizer
from gradhomog.files.regular import open_regular
from gradhomog.registry.annotated_values import validated

RESULTS = "conflict.json"
CHECKPOINT = "conflict.pt"
VERSION = 1
"""Format version of `RESULTS`."""

Tasks = Literal["train", "test"]
Progress = Callable[[Mapping[str, Any]], None]


@validated
def measure_conflict(
    config: Config,
    steps: Annotated[Sequence[Annotated[int, Ge(0)]], MinLen(1)] = (0, 100),
    batches: int = 48,
    pipeline: str = "rotogbml",
    *,
    tasks: Tasks = "train",
    columns: int = COLUMNS,
    folder: Path | None = None,
    progress: Progress = lambda record: None,
) -> list[DomainConflict]:
    """Train the first learner of a configuration with one pipeline and the first seed; measure it after given steps.

    All points are measured on the same batches, which are not used in training.

    Args:
        config: domains, episodes, network, learning rates, threads and device; `train.steps` is not used.
        steps: numbers of training steps before each measurement, increasing, >= 0.
        batches, columns: number of measured batches, and numbers per stored row, see `measure_rows`.
        pipeline: the homogenizers of training; the rows are measured before and after each of them.
        tasks: `"train"` measures new tasks of the training classes, `"test"` tasks of `domains.test`.
        folder: for `conflict.json` with all points so far, and for a checkpoint every `train.checkpoint_every` steps
            and at each point. A second call with the same configuration returns finished points and continues from the
            checkpoint.
        progress: called with `{"event": "step", "step", "of"}` after training steps, `{"event": "batch", "batch",
            "of", "step"}` after measured batches, and `{"event": "point", **record}` after each point.

    Returns:
        One measurement for each of `steps`.

    Cost: the training, and for each point `batches` times the rows of one batch for each homogenizer that acts before
    rows exist, and once more. Memory: see `measure_rows`.

    Source: Zhang et al. 2023 (RotoGBML), arXiv 2303.06679, figure 1. Deviation: the figure has norms and cosines of
    single rows, in which noise and conflict are not separated; expected gradients are estimated beside them.

    Raises:
        OptionError: `steps`, `batches` or `tasks` is invalid. ConfigError: the folder has measurements of another
            configuration, or the configuration has a multi-task problem. GradhomogError: as in training.
    """
    points = list(steps)
    if any(after <= before for before, after in itertools.pairwise(points)):
        raise OptionError(f"`steps` must be increasing; got {steps!r}.")
    run = Run(config.learners[0], pipeline, config.seed_list[0])
    config = config.for_run(run.learner, run.homogenizers, run.seed)
    fingerprints = list(streams(config, run.seed).fingerprints.values())
    settings = {
        "config": config.result_settings(),
        "fingerprints": fingerprints,
        "batches": batches,
        "tasks": tasks,
        "columns": columns,
    }
    files = _Files(folder, settings)
    found = files.read()
    missing = [step for step in points if step not in found]
    if missing:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        with threads(config.threads):
            study = _Study(config, run, batches, tasks, columns, progress, files.digest)
            study.resume(folder, missing[0])
            for step in missing:
                study.train(step, files.write_checkpoint)
                found[step] = study.measure()
                files.write(found, study.state())
                progress({"event": "point", **found[step].record()})
    return [found[step] for step in points]


class _Study:
    """A learner that is trained to given steps, and measured there."""

    def __init__(
        self, config: Config, run: Run, batches: int, tasks: Tasks, columns: int, progress: Progress, digest: str
    ) -> None:
        self.batches, self.columns, self.progress, self.digest = batches, columns, progress, digest
        self.trained = MetaLearning(config, run)
        self.optimizer = make_optimizer(config, self.trained)
        self.stream = measured_stream(self.trained.source, tasks)
        self.device = self.trained.learner.parameters()[0].device
        self.done = 0

    def train(self, step: int, save: Callable[[Mapping[str, Any]], None]) -> None:
        """Train to a step, and save the state every `train.checkpoint_every` steps."""
        while self.done < step:
            self.trained.step(self.done, self.optimizer, inspect=False)
            self.done += 1
            if self.done % self.trained.config.train.checkpoint_every == 0:
                save(self.state())
            self.progress({"event": "step", "step": self.done, "of": step})

    def measure(self) -> DomainConflict:
        def report(batch: int) -> None:
            self.progress({"event": "batch", "batch": batch, "of": self.batches, "step": self.done})

        return measure_rows(
            self.trained.learner, self.stream, self.batches, step=self.done, columns=self.columns, progress=report
        )

    def state(self) -> Snapshot:
        return take_snapshot(self.digest, self.done, self.trained, self.optimizer, self.device)

    def resume(self, folder: Path | None, first: int) -> None:
        """Continue from the checkpoint, unless it is of another configuration or after the first step to measure."""
        if folder is None or not (folder / CHECKPOINT).exists():
            return
        with checksums.open_checkpoint(folder / CHECKPOINT, Snapshot) as state:
            if state["digest"] == self.digest and state["done"] <= first:
                self.done = restore_snapshot(state, self.trained, self.optimizer, self.device)


@dataclasses.dataclass(frozen=True)
class _Files:
    """The points and the checkpoint in a folder, with the settings that they belong to; no files without a folder."""

    folder: Path | None
    settings: Mapping[str, Any]

    def read(self) -> dict[int, DomainConflict]:
        """Return the finished points by step."""
        if self.folder is None or not (self.folder / RESULTS).exists():
            return {}
        path = self.folder / RESULTS
        try:
            with open_regular(path, MAX_BYTES, error=ConfigError) as file:
                content = json.load(file)
            current = (content["version"], content["digest"]) == (VERSION, self.digest)
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

    def write(self, points: Mapping[int, DomainConflict], state: Mapping[str, Any]) -> None:
        if self.folder is None:
            return
        # The checkpoint first: if the process ends between the two files, the last point is measured again.
        self.write_checkpoint(state)
        records = [points[step].record() for step in sorted(points)]
        content = {"version": VERSION, "digest": self.digest, **self.settings, "points": records}
        atomic_files.write_bytes(self.folder / RESULTS, (json.dumps(content, ensure_ascii=False) + "\n").encode())

    def write_checkpoint(self, state: Mapping[str, Any]) -> None:
        if self.folder is not None:
            checksums.write_checkpoint(self.folder / CHECKPOINT, state)

    @property
    def digest(self) -> str:
        return checksums.content_digest(self.settings)[:12]


def measured_stream(source: Streams, tasks: Tasks) -> EpisodeStream:
    """Return batches of training or test tasks in the strong setting, with as many tasks as batches of training."""
    like = source.train if tasks == "train" else source.test
    return EpisodeStream(
        like.domains, split=like.split, ways=like.ways, shots=like.shots, queries=like.queries,
        tasks=source.train.tasks, setting="strong", seed=like.seed, channels=like.channels,
    )  # fmt: skip
