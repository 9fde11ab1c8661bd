"""Trainer of one run: training with validation, the best states, test, and checkpoints, from which it resumes."""

import copy
import datetime
import time
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

import torch
from torch import Tensor

from gradhomog.errors import ConfigError
from gradhomog.experiments.environment import device, machine, versions
from gradhomog.experiments.results import checksums
from gradhomog.experiments.results.comparison_dir import BEST, RunDir
from gradhomog.experiments.results.events import VERSION, Count, EventLog, Seconds, json_compatible
from gradhomog.experiments.run_file import pins
from gradhomog.experiments.run_file.schema import Config, Train
from gradhomog.experiments.runs import Run
from gradhomog.experiments.score_metrics import metric
from gradhomog.experiments.training.meta_learning import MetaLearning
from gradhomog.experiments.training.multi_task import MultiTask
from gradhomog.problems import MultiTaskData, Problem, ProblemRun
from gradhomog.registry import installed
from gradhomog.registry.specs import Observer

Trainable = MetaLearning | Problem
"""The object of a run: a learner with its episodes, or a multi-task network. Both have the methods of
`gradhomog.Problem`; `probe` of a learner returns its rows after each homogenizer, and `test` of several states is that
of their ensemble."""


class BestState(TypedDict):
    """The state of a learner, with its validation score and its number of training steps."""

    score: Any  # a float, possibly NaN
    step: Count
    state: dict[str, Any]


class Checkpoint(TypedDict):
    """The content of `checkpoint.pt`.

    `digest` is the hash of the configuration, `done` the number of steps, and `events` the number of bytes of
    `events.jsonl` that belong to it; `fingerprints` are those of `Plan`, in order.
    """

    digest: str
    done: Count
    trained: dict[str, Any]
    outer: dict[str, Any]
    random: Tensor
    random_cuda: Tensor | None
    events: Count
    fingerprints: list[str]
    seconds: Seconds
    processor_seconds: Seconds
    best: list[BestState]


def restore_checkpoint(
    state: Mapping[str, Any], trainable: Trainable, optimizer: torch.optim.Optimizer, device: torch.device | None = None
) -> int:
    """Load network, optimizer and generators of a checkpoint, and return its number of steps.

    Without `device` the generator of the GPU is not loaded.
    """
    trainable.load_state_dict(state["trained"])
    optimizer.load_state_dict(state["outer"])
    torch.set_rng_state(state["random"])
    if device is not None and state["random_cuda"] is not None:
        torch.cuda.set_rng_state(state["random_cuda"], device)
    return int(state["done"])


class BestStates:
    """The states with the best scores, best first. Of equal scores, the earlier state comes first.

    Args:
        count: maximum number of states, >= 1.
        better: called as `better(new, old)`; returns True if the score `new` is better than `old`.
    """

    def __init__(self, count: int, better: Callable[[float, float], bool]) -> None:
        self.count, self.better = count, better
        self.states: list[BestState] = []

    def add(self, score: float, step: int, state: Mapping[str, Any]) -> None:
        """Store a copy of the state if its score is among the best."""
        scores = [saved["score"] for saved in self.states]
        rank = next((i for i, other in enumerate(scores) if self.better(score, other)), len(scores))
        if rank < self.count:
            self.states.insert(rank, {"score": score, "step": step, "state": copy.deepcopy(dict(state))})
            del self.states[self.count :]


def make_trainable(config: Config, run: Run) -> Trainable:
    """Return the trainable of a run, initialized from its seed: a learner on episodes, or a multi-task network.

    Raises:
        GradhomogError: names, options, data or device are invalid.
    """
    if config.problem is None:
        return MetaLearning(config, run)
    train, network, options = config.train, config.network, dict(config.problem)
    name = options.pop("name")
    settings = ProblemRun(
        name, run.homogenizers, train.nonfinite, run.seed, train.steps, device(config.device),
        network.width, network.size,
    )  # fmt: skip
    info, _, made = installed().make("problems", name, options, settings)
    made = info.checked(made, Problem, MultiTaskData)
    problem: Problem = MultiTask(config, run, made) if isinstance(made, MultiTaskData) else made
    problem.in_optimizer_metric = train.metric == "optimizer"
    return problem


def make_optimizer(config: Config, trainable: Trainable) -> torch.optim.Optimizer:
    """Return the optimizer of the outer loop.

    Raises:
        ConfigError: its package is not installed.
    """
    train, parameters = config.train, trainable.parameters()
    if train.outer == "adam":
        return torch.optim.Adam(parameters, lr=train.outer_lr, betas=(train.beta1, 0.999))
    if train.outer == "sgd":
        return torch.optim.SGD(parameters, lr=train.outer_lr)
    try:
        from pytorch_optimizer import SOAP
    except ImportError as cause:
        raise ConfigError(
            "`train.outer` 'soap' needs the package 'pytorch-optimizer'. Install it with: pip install 'gradhomog[soap]'"
        ) from cause
    # β₂ and the period of new eigenbases, 10 steps, are those of SOAP's authors. No weight decay, as in Adam above.
    soap: torch.optim.Optimizer = SOAP(parameters, lr=train.outer_lr, betas=(train.beta1, 0.95), weight_decay=0.0)
    return soap


def learning_rate(train: Train, index: int) -> float:
    """Return the rate of the outer optimizer in step `index`: constant within each `lr_decay_every` steps.

    >>> learning_rate(Train(outer_lr=0.1, lr_decay=0.5, lr_decay_every=10), 25)
    0.025
    """
    return float(train.outer_lr * train.lr_decay ** (index // train.lr_decay_every))


class Trainer:
    """Train and test one run, and write its folder: events, checkpoints, and finally networks, figure data and result.

    Args:
        config: configuration of this run only, see `Config.for_run`.
        run: learner, homogenizers and seed.
        folder: folder of the run; this process holds its lock.
        observe: called with every event that is written, and with the result.
        jobs: number of runs that are computed at the same time; recorded only.

    Attributes:
        done: number of training steps so far.
    """

    def __init__(
        self, config: Config, run: Run, folder: RunDir, observe: Observer = lambda event, record: None, jobs: int = 1
    ) -> None:
        self.config, self.run, self.folder, self.observe, self.jobs = config, run, folder, observe, jobs
        folder.create(config.to_toml())
        self.trainable = make_trainable(config, run)
        self.optimizer = make_optimizer(config, self.trainable)
        self.fingerprints: dict[str, str] = self.trainable.metadata().get("fingerprints", {})
        self.device = torch.device(config.device)
        self.done = 0
        self.seconds = 0.0  # wall-clock time of training
        self.processor_seconds = 0.0  # processor time of training: other runs on the machine do not count
        self.best = BestStates(config.train.ensemble, self._better)
        size = self._load() if folder.checkpoint.exists() else 0
        self.events = EventLog(folder.events, size)

    def train_and_test(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train to the end and test. If `stop()` returns True before a step, write a checkpoint and return False."""
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
                self.save()
                return False
            self._step()
            if self.done % train.checkpoint_every == 0 or self.done == train.steps:
                self.save()
        self._test()
        return True

    def fail(self, error: str) -> None:
        """Write the event `failed` with an error that ends the run."""
        self._emit("failed", step=self.done, error=error)

    def _emit(self, event: str, **content: Any) -> None:
        record = {"event": event, **content}
        self.events.append(record)
        self._notify(record)

    def _notify(self, record: Mapping[str, Any]) -> None:
        self.observe(record["event"], json_compatible({**record, **self.run.identity}))

    def _step(self) -> None:
        train, index, start, processor = self.config.train, self.done, time.perf_counter(), time.process_time()
        logged = index == 0 or (index + 1) % train.log_every == 0
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(train, index)
        report = self.trainable.step(index, self.optimizer, inspect=logged)
        self.done += 1
        self.seconds += time.perf_counter() - start
        self.processor_seconds += time.process_time() - processor
        if logged:
            self._emit("step", step=self.done, seconds=self.seconds, **report.record())
        if self.done % train.validate_every == 0 or self.done == train.steps:
            if stages := self.trainable.probe(index):
                self._emit("probe", step=self.done, stages=[stage.record() for stage in stages])
            result = self.trainable.validate()
            half_width = result.half_width if self.trainable.samples_tasks else None
            self._emit("validation", step=self.done, score=result.mean, half_width=half_width)
            self.best.add(result.mean, self.done, self.trainable.state_dict())

    def _better(self, new: float, old: float) -> bool:
        return self.trainable.state_selection == "last" or metric(self.trainable.metric).is_better(new, old)

    def _test(self) -> None:
        best = self.best.states[0]
        extra: dict[str, Any] = {} if self.config.problem is None else {"problem": self.config.problem["name"]}
        checksums.write_network(self.folder.path / BEST, best["state"])
        if self.config.train.ensemble > 1:
            checksums.write_network(self.folder.path / "ensemble.pt", {"states": self.best.states})
            extra["ensemble"] = [saved["step"] for saved in self.best.states]
        self.trainable.load_state_dict(best["state"])
        result = self.trainable.test([saved["state"] for saved in self.best.states])
        extra |= self.trainable.write_artifacts(self.folder.path)
        record = {
            "event": "result", **self.run.identity, "metric": self.trainable.metric, "scores": result.scores,
            "losses": result.losses, "domains": result.domains, "validation": best["score"], "best_step": best["step"],
            "steps": self.done, "seconds": self.seconds, "step_seconds": self.processor_seconds / self.done,
            "digest": self.config.digest, "fingerprints": self.fingerprints, **extra,
        }  # fmt: skip
        self.folder.finish(record)
        self._notify(record)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint."""
        state: Checkpoint = {
            "digest": self.config.digest,
            "done": self.done,
            "trained": dict(self.trainable.state_dict()),
            "outer": self.optimizer.state_dict(),
            # Dropout, for example, draws from the global generators.
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
            "fingerprints": list(self.fingerprints.values()),  # keys contain paths, which may change
            "events": self.events.sync(),
            "seconds": self.seconds,
            "processor_seconds": self.processor_seconds,
            "best": self.best.states,
        }
        checksums.write_checkpoint(self.folder.checkpoint, state)

    def _load(self) -> int:
        """Load the checkpoint; return the number of bytes of `events.jsonl` that belong to it."""
        with checksums.open_checkpoint(self.folder.checkpoint, Checkpoint) as state:
            if (state["digest"], state["fingerprints"]) != (self.config.digest, list(self.fingerprints.values())):
                raise ConfigError(
                    f"{self.folder.checkpoint} is of another configuration, or its data differ. Remove it, or choose "
                    "another --out."
                )
            if state["done"] > self.config.train.steps:
                raise ValueError("it is of a training with more steps")
            self.done = restore_checkpoint(state, self.trainable, self.optimizer, self.device)
            self.seconds, self.processor_seconds = state["seconds"], state["processor_seconds"]
            self.best.states = [
                {"score": float(saved["score"]), "step": saved["step"], "state": saved["state"]}
                for saved in state["best"]
            ]
            return int(state["events"])
