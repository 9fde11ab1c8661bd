"""One run: train with validation, keep the best, test; resumable at any step, bit for bit."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from gradhomog.errors import ConfigError
from gradhomog.experiments import problems
from gradhomog.experiments.config import pins
from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.execution.environment import machine, versions
from gradhomog.experiments.results import sealed
from gradhomog.experiments.results.events import VERSION, EventLog, plain
from gradhomog.experiments.results.plan import Run
from gradhomog.experiments.results.run_dir import BEST, RunDir
from gradhomog.experiments.training.best_states import Best
from gradhomog.experiments.training.homogenizer_timer import HomogenizerTimer
from gradhomog.experiments.training.meta_learning import MetaLearning
from gradhomog.experiments.training.trainable import Trainable

Observe = Callable[[str, Mapping[str, Any]], None]


def trainable(config: Config, run: Run) -> Trainable:
    """What a run trains, as its seed initialises it: a learner on episodes, or the network of a multi-task problem.

    Raises:
        GradhomogError: names, options, data or device are not usable.
    """
    if config.problem is None:
        return MetaLearning(config, run)
    made: Trainable = problems.find(config.problem.name).trainable(config, run)
    return made


def optimizer(config: Config, trained: Trainable) -> torch.optim.Optimizer:
    """What takes the steps of a run."""
    return torch.optim.Adam(trained.parameters(), lr=config.train.outer_lr)


class Trainer:
    """One run in its folder: events as they come, a checkpoint now and then, and at the end networks, what figures
    need, and the result.

    Args:
        config: of this run alone, `Config.of_run`.
        run: what to train.
        folder: of the run; held by this process.
        observe: called with every event that is written, and the result.
        jobs: how many runs are made at a time, for the record.
    """

    def __init__(
        self,
        config: Config,
        run: Run,
        folder: RunDir,
        observe: Observe = lambda event, record: None,
        jobs: int = 1,
    ) -> None:
        self.config, self.run, self.folder, self.observe, self.jobs = config, run, folder, observe, jobs
        folder.begin(config.to_toml())
        self.trained = trainable(config, run)
        self.outer = optimizer(config, self.trained)
        self.timer = HomogenizerTimer(self.trained.members)
        self.done = 0
        self.seconds = 0.0  # by the clock, as a user waits
        self.processor_seconds = 0.0  # of the processor: what other runs take does not count
        self.best = Best(config.train.ensemble, self._better)
        size = self._load() if folder.checkpoint.exists() else 0
        self.events = EventLog(folder.events, size)

    def finish(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train to the end and test; returns False if `stop()` said so on the way, with a checkpoint written."""
        train = self.config.train
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._emit(
            "start",
            version=VERSION,
            time=now,
            step=self.done,
            versions=versions() | pins.versions(self.config.plugins),
            machine=machine(),
            jobs=self.jobs,
        )
        while self.done < train.steps:
            if stop():
                self._save()
                return False
            self._step()
            if self.done % train.checkpoint_every == 0 or self.done == train.steps:
                self._save()
        self._test()
        return True

    def fail(self, error: str) -> None:
        """Write the event of an error with which the run ends."""
        self._emit("failed", step=self.done, error=error)

    def _emit(self, event: str, **content: Any) -> None:
        record = {"event": event, **content}
        self.events.append(record)
        self._tell(record)

    def _tell(self, record: Mapping[str, Any]) -> None:
        self.observe(record["event"], plain({**record, **self.run.identity}))

    def _step(self) -> None:
        train, index, start, processor = self.config.train, self.done, time.perf_counter(), time.process_time()
        with self.timer.counting():
            told = index == 0 or (index + 1) % train.log_every == 0
            report = self.trained.step(index, self.outer, inspect=told)
        self.done += 1
        self.seconds += time.perf_counter() - start
        self.processor_seconds += time.process_time() - processor
        if told:
            self._emit("step", step=self.done, seconds=self.seconds, **report.record())
        if self.done % train.validate_every == 0 or self.done == train.steps:
            if stages := self.trained.probe(index):
                self._emit("probe", step=self.done, stages=[stage.record() for stage in stages])
            result = self.trained.validate()
            spread = result.half_width if self.trained.sampled else None
            self._emit("validation", step=self.done, score=result.mean, half_width=spread)
            self.best.offer(result.mean, self.done, self.trained.state_dict())

    def _better(self, new: float, old: float) -> bool:
        return self.trained.keeps == "last" or self.trained.metric.better(new, old)

    def _test(self) -> None:
        best = self.best.first
        more: dict[str, Any] = {} if self.config.problem is None else {"problem": self.config.problem.name}
        sealed.write_network(self.folder.path / BEST, best.state)
        if self.config.train.ensemble > 1:
            sealed.write_network(self.folder.path / "ensemble.pt", {"states": self.best.state_dict()})
            more["ensemble"] = [kept.step for kept in self.best.kept]
        self.trained.load_state_dict(best.state)
        result = self.trained.test([kept.state for kept in self.best.kept])
        more |= self.trained.leave(self.folder.path)
        found = {
            "event": "result", **self.run.identity, "metric": self.trained.metric.name, "scores": result.scores,
            "losses": result.losses, "domains": result.domains, "validation": best.score, "best_step": best.step,
            "steps": self.done, "seconds": self.seconds, "step_seconds": self.processor_seconds / self.done,
            "homogenizer_seconds": self.timer.record(), "digest": self.config.digest, **more,
        }  # fmt: skip
        self.folder.finish(found)
        self._tell(found)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        self.events.sync()
        on_cuda = torch.device(self.config.device).type == "cuda"
        state = {
            "digest": self.config.digest,
            "events": self.events.size,
            "done": self.done,
            "seconds": self.seconds,
            "processor_seconds": self.processor_seconds,
            "homogenizer_seconds": self.timer.seconds,
            "best": self.best.state_dict(),
            "trained": self.trained.state_dict(),
            "outer": self.outer.state_dict(),
            # Dropout and the like draw from the global generators.
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(self.config.device) if on_cuda else None,
        }
        sealed.write_state(self.folder.checkpoint, state)

    def _load(self) -> int:
        """Take up the state of the checkpoint; returns the bytes of `events.jsonl` that belong to it."""
        state = sealed.read_state(self.folder.checkpoint)
        if state["digest"] != self.config.digest:
            raise ConfigError(f"{self.folder.checkpoint} is of another configuration; remove it or use another --out.")
        self.trained.load_state_dict(state["trained"])
        self.outer.load_state_dict(state["outer"])
        self.done, self.seconds = state["done"], state["seconds"]
        self.processor_seconds, self.timer.seconds = state["processor_seconds"], state["homogenizer_seconds"]
        self.best.load_state_dict(state["best"])
        torch.set_rng_state(state["random"])
        if state["random_cuda"] is not None:
            torch.cuda.set_rng_state(state["random_cuda"], self.config.device)
        return int(state["events"])
