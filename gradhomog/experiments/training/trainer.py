"""One run: train with validation, keep the best, test; resumable at any step, bit for bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from gradhomog.errors import ConfigError
from gradhomog.experiments import problems
from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.data.splits import Streams as Streams
from gradhomog.experiments.data.splits import streams as streams
from gradhomog.experiments.execution.plan import Run
from gradhomog.experiments.results.atomic import replacing
from gradhomog.experiments.training.best_states import Best
from gradhomog.experiments.training.homogenizer_timer import HomogenizerTimer
from gradhomog.experiments.training.meta_learning import Episodic
from gradhomog.experiments.training.meta_learning import make_learner as make_learner  # others ask for them here
from gradhomog.experiments.training.trainable import Trainee

CHECKPOINT = "checkpoint.pt"

Emit = Callable[[dict[str, Any]], None]


def trainee(config: Config, run: Run) -> Trainee:
    """What a run trains, as its seed initialises it: a learner on episodes, or the network of a multi-task problem.

    Raises:
        GradhomogError: names, options, data or device are not usable.
    """
    if config.problem is None:
        return Episodic(config, run)
    made: Trainee = problems.find(config.problem.name).trainee(config, run)
    return made


def optimizer(config: Config, trainee: Trainee) -> torch.optim.Optimizer:
    """What takes the steps of a run."""
    return torch.optim.Adam(trainee.parameters(), lr=config.train.outer_lr)


class Training:
    """One run in a folder of its own: `checkpoint.pt` while it trains, `best.pt` and what figures need when it is done;
    and `ensemble.pt`, where several states are tested together.

    The checkpoint stays until somebody calls `forget_checkpoint`: whoever has put the result on disk.

    Args:
        config, run: what to train.
        folder: made if missing.
        emit: called with the records `step`, `validation` and `result`, in order; see `results`.
    """

    def __init__(self, config: Config, run: Run, folder: Path, emit: Emit) -> None:
        self.config, self.run, self.folder, self.emit = config, run, folder, emit
        self.trainee = trainee(config, run)
        self.outer = optimizer(config, self.trainee)
        self.meter = HomogenizerTimer(self.trainee.members)
        self.done = 0
        self.seconds = 0.0  # by the clock, as a user waits
        self.processor_seconds = 0.0  # of the processor: what other runs take does not count
        self.best = Best(config.train.ensemble, self._better)
        self._checkpoint = folder / CHECKPOINT
        if self._checkpoint.exists():
            self._load()

    def finish(self, stop: Callable[[], bool] = lambda: False, progress: Emit = lambda record: None) -> bool:
        """Train to the end and test; returns False if `stop()` said so on the way, with a checkpoint written.

        `progress` is called after every step with what a progress bar shows.
        """
        train = self.config.train
        self.folder.mkdir(parents=True, exist_ok=True)
        while self.done < train.steps:
            if stop():
                self._save()
                return False
            self._step(progress)
            if self.done % train.checkpoint_every == 0 and self.done < train.steps:
                self._save()
        self._test()
        return True

    def _step(self, progress: Emit) -> None:
        train, index, start, processor = self.config.train, self.done, time.perf_counter(), time.process_time()
        with self.meter.counting():
            told = index == 0 or (index + 1) % train.log_every == 0
            report = self.trainee.step(index, self.outer, inspect=told)
        self.done += 1
        self.seconds += time.perf_counter() - start
        self.processor_seconds += time.process_time() - processor
        identity = {"run": self.run.id, "learner": self.run.learner, "label": self.run.label, "step": self.done}
        if told:
            self.emit({"event": "step", **identity, **report.record()})
        scores = report.losses if report.accuracies is None else report.accuracies
        progress({**identity, "loss": float(report.losses.mean()), "score": float(scores.mean())})
        if self.done % train.validate_every == 0 or self.done == train.steps:
            if stages := self.trainee.probe(index):
                self.emit({"event": "probe", **identity, "stages": [stage.record() for stage in stages]})
            result = self.trainee.validate()
            spread = result.half_width if self.trainee.sampled else None
            self.emit({"event": "validation", **identity, "score": result.mean, "half_width": spread})
            self.best.offer(result.mean, self.done, self.trainee.state_dict())

    def _better(self, new: float, old: float) -> bool:
        return self.trainee.keeps == "last" or self.trainee.metric.better(new, old)

    def _test(self) -> None:
        best = self.best.first
        more: dict[str, Any] = {} if self.config.problem is None else {"problem": self.config.problem.name}
        _write(self.folder / "best.pt", best.state)
        if self.config.train.ensemble > 1:
            _write(self.folder / "ensemble.pt", {"states": self.best.state_dict()})
            more["ensemble"] = [kept.step for kept in self.best.kept]
        self.trainee.load_state_dict(best.state)
        result = self.trainee.test([kept.state for kept in self.best.kept])
        more |= self.trainee.leave(self.folder)
        self.emit(
            {
                "event": "result", "run": self.run.id, "label": self.run.label, "learner": self.run.learner,
                "homogenizers": self.run.homogenizers, "seed": self.run.seed, "role": self.run.role,
                "metric": self.trainee.metric.name, "scores": result.scores, "losses": result.losses,
                "domains": result.domains, "validation": best.score, "best_step": best.step, **more,
                "steps": self.done, "seconds": self.seconds, "step_seconds": self.processor_seconds / self.done,
                "homogenizer_seconds": self.meter.record(),
            }
        )  # fmt: skip

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        state = {
            "digest": self.config.digest,
            "done": self.done,
            "seconds": self.seconds,
            "processor_seconds": self.processor_seconds,
            "homogenizer_seconds": self.meter.seconds,
            "best": self.best.state_dict(),
            "trainee": self.trainee.state_dict(),
            "outer": self.outer.state_dict(),
            # Dropout and the like draw from the global generators.
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        _write(self._checkpoint, state)

    def _load(self) -> None:
        try:
            # On the CPU: generators' states live there, and modules and optimizers copy theirs to their own device.
            state = torch.load(self._checkpoint, map_location="cpu", weights_only=True)
        except Exception as cause:  # torch.load raises what unpickling raises
            raise ConfigError(
                f"{self._checkpoint} cannot be read: {cause}. Remove it to train this run from its start."
            ) from cause
        if state["digest"] != self.config.digest:
            raise ConfigError(f"{self._checkpoint} is of another configuration; remove it or use another --out.")
        self.trainee.load_state_dict(state["trainee"])
        self.outer.load_state_dict(state["outer"])
        self.done, self.seconds = state["done"], state["seconds"]
        self.processor_seconds, self.meter.seconds = state["processor_seconds"], state["homogenizer_seconds"]
        self.best.load_state_dict(state["best"])
        torch.set_rng_state(state["random"])
        if torch.cuda.is_available() and state["random_cuda"]:
            torch.cuda.set_rng_state_all(state["random_cuda"])


def forget_checkpoint(folder: Path) -> None:
    """Remove the checkpoint of a run whose result is on disk."""
    (folder / CHECKPOINT).unlink(missing_ok=True)


def _write(path: Path, state: Mapping[str, Any]) -> None:
    with replacing(path) as temporary:
        torch.save(dict(state), temporary)
