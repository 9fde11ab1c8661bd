"""One run: train with validation, keep the best, test; resumable at any step, bit for bit."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from gradhomog import api, expression, options
from gradhomog.bench import networks
from gradhomog.bench.best import Best
from gradhomog.bench.config import Config
from gradhomog.bench.episodes import EpisodeStream
from gradhomog.bench.plan import Run
from gradhomog.bench.saliency import write_looks
from gradhomog.bench.slowness import Meter
from gradhomog.bench.streams import Streams as Streams  # others ask for them here
from gradhomog.bench.streams import streams as streams
from gradhomog.ensemble import Ensemble
from gradhomog.errors import ConfigError
from gradhomog.learners import Learner
from gradhomog.registry import installed
from gradhomog.reports import Evaluation

CHECKPOINT = "checkpoint.pt"

Emit = Callable[[dict[str, Any]], None]


def make_learner(config: Config, run: Run, source: Streams) -> Learner:
    """The learner of a run, initialised from its seed; the same initialisation for every method."""
    selector, own = expression.parse_one(run.learner)
    _, spec = installed().load("learners", selector)
    chosen = {**_offered(config, source, set(options.accepted(spec)), run.learner), **own}
    torch.manual_seed(run.seed)
    encoder, head = networks.build(
        config.network.name, source.input_shape, source.outputs, config.network.width,
        flatten=chosen.get("maps") is not True,
    )  # fmt: skip
    device = _device(config.device)
    pipe = api.pipeline(run.homogenizers, nonfinite=config.train.nonfinite)
    made: Learner = installed().make(
        "learners", selector, chosen, encoder.to(device), head.to(device), homogenizers=pipe
    )[2]
    return made


def _offered(config: Config, source: Streams, accepted: set[str], learner: str) -> dict[str, Any]:
    """Options that a learner accepts and a run knows the values of."""
    train = config.train
    known: dict[str, Any] = {
        "inner": train.inner,
        "inner_steps": train.inner_steps,
        "inner_lr": train.inner_lr,
        "input_shape": list(source.input_shape),
        "maps": config.network.name != "mlp",  # the encoder's, in place of vectors
        "classes": source.train.class_count or None,  # that are trained on
    }
    if "classes" in accepted and source.train.outputs is None and known["classes"] is None:
        names = ", ".join(domain.name for domain in source.train.domains)
        raise ConfigError(
            f"{learner} is trained to tell all training classes apart, but `domains.train` do not tell theirs: "
            f"{names}. A domain does by `Domain.classes` and `Task.classes`."
        )
    return {name: value for name, value in known.items() if name in accepted and value is not None}


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
    """One run in a folder of its own: `checkpoint.pt` while it trains, `best.pt` and `looks.npz` when it is done; and
    `ensemble.pt`, where several states are tested together.

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
            self.best.offer(result.mean, self.done, self.learner.state_dict())

    def _better(self, new: float, old: float) -> bool:
        if math.isnan(new) or math.isnan(old):
            return math.isnan(old)
        return new > old if self.source.metric == "accuracy" else new < old

    def _evaluate(self, stream: EpisodeStream, episodes: int, tested: Ensemble | None = None) -> Evaluation:
        tasks = (stream.task(index).to(self.config.device) for index in range(episodes))
        return (tested or self.learner).evaluate(tasks)

    def _test(self) -> None:
        best, together = self.best.first, {}
        self.learner.load_state_dict(best.state)
        _write(self.folder / "best.pt", best.state)
        ensemble = None
        if self.config.train.ensemble > 1:
            ensemble = Ensemble(self.learner, [kept.state for kept in self.best.kept])
            _write(self.folder / "ensemble.pt", {"states": self.best.state_dict()})
            together = {"ensemble": [kept.step for kept in self.best.kept]}
        result = self._evaluate(self.source.test, self.config.test.episodes, ensemble)
        write_looks(self.learner, self.source.test, self.config.device, self.folder)
        self.emit(
            {
                "event": "result", "run": self.run.id, "label": self.run.label, "learner": self.run.learner,
                "homogenizers": self.run.homogenizers, "seed": self.run.seed, "role": self.run.role,
                "metric": self.source.metric, "scores": result.scores, "losses": result.losses,
                "domains": result.domains, "validation": best.score, "best_step": best.step, **together,
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
        self.best.load_state_dict(state["best"])
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
