"""One run: train with validation, keep the best, test; resumable at any step, bit for bit."""

from __future__ import annotations

import copy
import functools
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradhomog import api, expression, options
from gradhomog.bench import networks
from gradhomog.bench.config import Config
from gradhomog.bench.episodes import EpisodeStream
from gradhomog.bench.plan import Run
from gradhomog.bench.saliency import write_looks
from gradhomog.bench.slowness import Meter
from gradhomog.domains import Domain
from gradhomog.errors import ConfigError
from gradhomog.learners import Learner
from gradhomog.registry import Registry, installed
from gradhomog.reports import Evaluation

CHECKPOINT = "checkpoint.pt"

Emit = Callable[[dict[str, Any]], None]

# Validation and test tasks are the same for every method and every training seed.
EVALUATION_SEED = 0


@dataclass(frozen=True)
class Streams:
    """The tasks of a configuration: what to train on, and fixed lists to validate and test on."""

    train: EpisodeStream
    validation: EpisodeStream
    test: EpisodeStream
    input_shape: tuple[int, ...]
    outputs: int
    metric: str


@functools.lru_cache(maxsize=64)  # one process runs many trainings on the same domains
def _domain(text: str, size: int, registry: Registry) -> Domain:
    return api.domain(text, size=size, registry=registry)


def streams(config: Config, seed: int) -> Streams:
    """Open the domains and check that they can serve the episodes asked of them.

    Raises:
        DataError, OptionError, UnknownPluginError: a domain cannot be opened, or not serve; names it and the reason.
        ConfigError: regression and classification domains are mixed.
    """
    size, shape = config.network.size, config.episodes
    registry = installed()
    train, test = (
        [_domain(text, size, registry) for text in texts] for texts in (config.domains.train, config.domains.test)
    )
    trained = {api.domain_identity(text) for text in config.domains.train}
    seen = [api.domain_identity(text) in trained for text in config.domains.test]
    _tell_apart(config.domains.train, train)
    _tell_apart(config.domains.test, test)
    channels = None
    if len(train[0].input_shape) == 3:
        native = max(domain.input_shape[0] for domain in train + test)
        channels = int(config.network.channels) or native
    kind = {domain.outputs for domain in train + test}
    if len(kind) > 1:
        raise ConfigError("`domains` must be all of classification, or all of regression with one number of targets.")
    outputs = kind.pop()
    both = [domain for domain, known in zip(test, seen, strict=True) if known]
    unseen = [domain for domain, known in zip(test, seen, strict=True) if not known]
    if both and unseen:
        known, others = (", ".join(domain.name for domain in found) for found in (both, unseen))
        raise ConfigError(
            "`domains.test` must hold only domains that are trained on (their test classes are used), or only others "
            f"(all their classes are); it mixes {known} with {others}."
        )

    def stream(domains: list[Domain], split: Any, tasks: int, seed: int) -> EpisodeStream:
        return EpisodeStream(
            domains, split=split, ways=shape.ways, shots=shape.shots, queries=shape.queries, tasks=tasks,
            setting=config.domains.setting, seed=seed, channels=channels,
        )  # fmt: skip

    input_shape = train[0].input_shape if channels is None else (channels, *train[0].input_shape[1:])
    return Streams(
        stream(train, "train", shape.tasks, seed),
        stream(train, "val", 1, EVALUATION_SEED),
        stream(test, "test" if both else "all", 1, EVALUATION_SEED),
        input_shape,
        shape.ways if outputs is None else outputs,
        "accuracy" if outputs is None else "mse",
    )


def _tell_apart(texts: list[str], domains: list[Domain]) -> None:
    """Domains of one name (files of one stem in two folders) are called by their texts instead."""
    names = [domain.name for domain in domains]
    for index, (text, name) in enumerate(zip(texts, names, strict=True)):
        if names.count(name) > 1:
            domains[index] = copy.copy(domains[index])
            domains[index].name = text


def make_learner(config: Config, run: Run, source: Streams) -> Learner:
    """The learner of a run, initialised from its seed; the same initialisation for every method."""
    torch.manual_seed(run.seed)
    encoder, head = networks.build(config.network.name, source.input_shape, source.outputs, config.network.width)
    selector, own = expression.parse_one(run.learner)
    _, spec = installed().load("learners", selector)
    train = config.train
    inner = {"inner": train.inner, "inner_steps": train.inner_steps, "inner_lr": train.inner_lr}
    offered = {name: value for name, value in inner.items() if name in options.accepted(spec)}
    device = _device(config.device)
    pipe = api.pipeline(run.homogenizers, nonfinite=train.nonfinite)
    made: Learner = installed().make(
        "learners", selector, {**offered, **own}, encoder.to(device), head.to(device), homogenizers=pipe
    )[2]
    return made


def _device(name: str) -> torch.device:
    try:
        device = torch.zeros(1, device=name).device
        torch.zeros(1, device=device).item()  # a device without values, such as meta, cannot train
        return device
    except (RuntimeError, AssertionError, NotImplementedError) as cause:
        # An unknown name, or a device that this machine or this build of PyTorch lacks.
        reason = str(cause).splitlines()[0]
        raise ConfigError(
            f"`device` must be one that PyTorch can use here, such as cpu; got {name!r}: {reason}"
        ) from cause


class Training:
    """One run in a folder of its own: `checkpoint.pt` while it trains, `best.pt` and `looks.npz` when it is done.

    The checkpoint stays until somebody calls `forget_checkpoint`: whoever has put the result on disk.

    Args:
        config, run: what to train.
        folder: made if missing.
        emit: called with the records `step`, `validation` and `result`, in order; see `results`.
    """

    def __init__(self, config: Config, run: Run, folder: Path, emit: Emit) -> None:
        self.config, self.run, self.folder, self.emit = config, run, folder, emit
        self.source = streams(config, run.seed)
        self.learner = make_learner(config, run, self.source)
        self.outer = torch.optim.Adam(self.learner.parameters(), lr=config.train.outer_lr)
        self.meter = Meter(self.learner.homogenizers.members)
        self.done = 0
        self.seconds = 0.0  # by the clock, as a user waits
        self.processor_seconds = 0.0  # of the processor: what other runs take does not count
        self.best_score: float | None = None
        self.best_step = 0
        self.best: dict[str, Any] = {}
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
        train, start, processor = self.config.train, time.perf_counter(), time.process_time()
        batch = self.source.train.batch(self.done).to(self.config.device)
        with self.meter.counting():
            report = self.learner.step(batch, self.outer)
        self.done += 1
        self.seconds += time.perf_counter() - start
        self.processor_seconds += time.process_time() - processor
        identity = {"run": self.run.id, "learner": self.run.learner, "label": self.run.label, "step": self.done}
        if self.done == 1 or self.done % train.log_every == 0:
            self.emit({"event": "step", **identity, **report.record()})
        scores = report.losses if report.accuracies is None else report.accuracies
        progress({**identity, "loss": float(report.losses.mean()), "score": float(scores.mean())})
        if self.done % train.validate_every == 0 or self.done == train.steps:
            if any(member.before_rows for member in self.learner.homogenizers.members):
                stages = [stage.record() for stage in self.learner.probe(batch)]
                self.emit({"event": "probe", **identity, "stages": stages})
            result = self._evaluate(self.source.validation, train.validation_episodes)
            self.emit({"event": "validation", **identity, "score": result.mean, "half_width": result.half_width})
            if self.best_score is None or self._better(result.mean, self.best_score):
                self.best_score, self.best_step = result.mean, self.done
                self.best = copy.deepcopy(self.learner.state_dict())

    def _better(self, new: float, old: float) -> bool:
        if math.isnan(new) or math.isnan(old):
            return math.isnan(old)
        return new > old if self.source.metric == "accuracy" else new < old

    def _evaluate(self, stream: EpisodeStream, episodes: int) -> Evaluation:
        return self.learner.evaluate(stream.task(index).to(self.config.device) for index in range(episodes))

    def _test(self) -> None:
        self.learner.load_state_dict(self.best)
        result = self._evaluate(self.source.test, self.config.test.episodes)
        _write(self.folder / "best.pt", self.best)
        write_looks(self.learner, self.source.test, self.config.device, self.folder)
        self.emit(
            {
                "event": "result", "run": self.run.id, "label": self.run.label, "learner": self.run.learner,
                "homogenizers": self.run.homogenizers, "seed": self.run.seed, "role": self.run.role,
                "metric": self.source.metric, "scores": result.scores, "losses": result.losses,
                "domains": result.domains, "validation": self.best_score, "best_step": self.best_step,
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
            "best_score": self.best_score,
            "best_step": self.best_step,
            "best": self.best,
            "learner": self.learner.state_dict(),
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
        self.learner.load_state_dict(state["learner"])
        self.outer.load_state_dict(state["outer"])
        self.done, self.seconds = state["done"], state["seconds"]
        self.processor_seconds, self.meter.seconds = state["processor_seconds"], state["homogenizer_seconds"]
        self.best_score, self.best_step, self.best = state["best_score"], state["best_step"], state["best"]
        torch.set_rng_state(state["random"])
        if torch.cuda.is_available() and state["random_cuda"]:
            torch.cuda.set_rng_state_all(state["random_cuda"])


def forget_checkpoint(folder: Path) -> None:
    """Remove the checkpoint of a run whose result is on disk."""
    (folder / CHECKPOINT).unlink(missing_ok=True)


def _write(path: Path, state: Mapping[str, Any]) -> None:
    """Replace a file in one step: a run killed while writing keeps the previous one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save(dict(state), temporary)
    os.replace(temporary, path)
