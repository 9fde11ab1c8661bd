"""Diagnosis of a run file: train the plain learner or multi-task problem for some steps, and diagnose it there."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradhomog.diagnosis.diagnosis import Diagnosis
from gradhomog.diagnosis.estimates import MIN_BATCHES
from gradhomog.diagnosis.result import DiagnosisResult
from gradhomog.errors import ConfigError
from gradhomog.experiments.environment import threads
from gradhomog.experiments.profiling.harness import TimingTable
from gradhomog.experiments.profiling.overhead import step_overheads
from gradhomog.experiments.results import atomic_files
from gradhomog.experiments.run_file.schema import Config
from gradhomog.experiments.runs import Run
from gradhomog.experiments.training.trainer import Trainable, make_optimizer, make_trainable
from gradhomog.global_state import restore_generators
from gradhomog.learners.learner_rows import FIRST_BATCH

DEFAULT_SHARE = 0.05
"""Share of `train.steps` before the diagnosis: the first gradients after initialization are not representative. On
glyphs the conflict rate rises from 0.16 at step 0 to 0.44 after 60 steps."""

RECORD = "diagnosis.json"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class RunDiagnosis:
    """The diagnosis of a run file.

    Attributes:
        learner: the learner, or the multi-task problem.
        seed: the first seed of the run file.
        step, steps: number of training steps before the diagnosis, and of the whole training.
        result: estimates and recommendation.
        overhead: the time of a training step with each pipeline; None if not measured.
        run_file: run file and overrides, as in the command line.
    """

    learner: str
    seed: int
    step: int
    steps: int
    result: DiagnosisResult
    overhead: TimingTable | None
    run_file: str = "RUN.toml"

    def render(self) -> str:
        """Return the diagnosis as text."""
        title = f"{self.learner} after {self.step} of {self.steps} steps, without homogenizers, seed {self.seed}"
        overhead = [] if self.overhead is None else ["", self.overhead.render()]
        return "\n".join([title, self.result.table(self.run_file), *overhead])

    def record(self) -> dict[str, Any]:
        """Return the diagnosis for JSON."""
        return {
            "learner": self.learner, "seed": self.seed, "step": self.step, "steps": self.steps,
            "diagnosis": self.result.record(),
            "overhead": None if self.overhead is None else self.overhead.record(),
        }  # fmt: skip

    def write(self, folder: Path) -> None:
        """Write `diagnosis.json` and `diagnosis.txt`."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.record(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
        atomic_files.write_bytes(folder / RECORD, text.encode())
        atomic_files.write_bytes(folder / "diagnosis.txt", (self.render() + "\n").encode())


def diagnose(
    config: Config,
    at: int | None = None,
    batches: int = 48,
    seconds: float = 10.0,
    progress: Progress = lambda done, total: None,
) -> RunDiagnosis:
    """Train the first learner or the problem of a configuration without homogenizers, and diagnose it.

    Args:
        config: of its homogenizers, only the overhead is measured.
        at: number of training steps before the diagnosis, at most `train.steps`; by default 5 % of them.
        batches: number of batches, >= 3. They are not used in training.
        seconds: time budget of the overhead; 0 omits it.
        progress: called with the number of finished training steps and batches, and their total.

    Raises:
        ConfigError: `at` or `batches` is out of range. GradhomogError: as in training.
    """
    at = round(DEFAULT_SHARE * config.train.steps) if at is None else at
    if not 0 <= at <= config.train.steps or batches < MIN_BATCHES:
        raise ConfigError(
            f"`at` must be from 0 to `train.steps` ({config.train.steps}) and `batches` at least {MIN_BATCHES}; got "
            f"{at} and {batches}."
        )
    run = Run(config.learners[0], "none", config.seed_list[0])
    with threads(config.threads):
        trainable = make_trainable(config.for_run(run), run)
        optimizer = make_optimizer(config, trainable)
        for index in range(at):
            trainable.step(index, optimizer, inspect=False)
            progress(index + 1, at + batches)
        result = diagnose_trainable(trainable, batches, lambda done: progress(at + done, at + batches))
    tables = step_overheads(config, [run.learner], seconds=seconds, with_memory=False) if seconds > 0 else [None]
    return RunDiagnosis(run.learner, run.seed, at, config.train.steps, result, tables[0])


def diagnose_trainable(
    trainable: Trainable, batches: int, progress: Callable[[int], None] = lambda done: None
) -> DiagnosisResult:
    """Diagnose a trainable at its present parameters; it does not change, nor do the global generators.

    Raises:
        OptionError: there are fewer than three batches.
    """
    found: Diagnosis | None = None
    for index in range(batches):
        with restore_generators():
            torch.manual_seed(FIRST_BATCH + index)
            rows, names, examples = trainable.rows(index)
        found = found or Diagnosis(batch_size=examples)
        found.add(rows, names)
        progress(index + 1)
    return (found or Diagnosis()).result()
