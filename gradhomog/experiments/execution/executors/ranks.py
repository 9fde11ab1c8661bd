"""Executor for the ranks that `torchrun` has started: each computes the rows of some tasks of every batch."""

import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradhomog.errors import ConfigError
from gradhomog.experiments.environment import threads
from gradhomog.experiments.execution.worker import Executor, Job, Outcome
from gradhomog.experiments.results import checksums
from gradhomog.experiments.results.comparison_dir import run_dir
from gradhomog.experiments.run_file import pins
from gradhomog.experiments.training.trainer import (
    Checkpoint,
    learning_rate,
    make_optimizer,
    make_trainable,
    restore_checkpoint,
)


class TorchrunRanks(Executor):
    """One run at a time on all ranks. This process is rank 0, which validates, tests and writes the folder.

    The other ranks call `follow`. They receive configuration and checkpoint from rank 0, so they need no access to the
    folder.
    """

    def __init__(self, *, jobs: int, folder: Path) -> None:
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            raise ConfigError("--executor ranks must be started by torchrun: torchrun -m gradhomog train RUN.toml.")
        self.jobs = 1

    def __call__(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        for job in jobs:
            if job.config.problem is not None:
                raise ConfigError(
                    "several ranks train learners on tasks; `problem` must not be set. Use one process, or your own "
                    "loop with gradhomog.Ranks('batch')."
                )
            if job.config.episodes.tasks < int(os.environ["WORLD_SIZE"]):
                raise ConfigError(
                    f"`episodes.tasks` must be at least the number of ranks, {os.environ['WORLD_SIZE']}; got "
                    f"{job.config.episodes.tasks}."
                )
            yield self._compute(job)

    def _compute(self, job: Job) -> Outcome:
        checkpoint = run_dir(job.folder, job.run).checkpoint
        content = checksums.checkpoint_content(checkpoint) if checkpoint.exists() else None
        with _process_group(job.config.device):
            dist.broadcast_object_list([job, content], src=0)
            return job()


def follow(device: str) -> None:
    """Compute the rows of this rank in every step of rank 0, to the end of its training.

    SIGTERM, which `torchrun` sends if another rank has failed, ends the process at once: there is nothing to save, and
    a Python handler would not run before the collective that waits for that rank returns.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with _process_group(device):
        received: list[Any] = [None, None]
        dist.broadcast_object_list(received, src=0)
        job, content = received
        with threads(job.config.threads), pins.use_pinned_plugins(job.config.for_run(job.run)) as config:
            trainable = make_trainable(config, job.run)
            optimizer, done = make_optimizer(config, trainable), 0
            if content is not None:
                with checksums.open_checkpoint(run_dir(job.folder, job.run).checkpoint, Checkpoint, content) as state:
                    done = restore_checkpoint(state, trainable, optimizer)
            for index in range(done, config.train.steps):
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(config.train, index)
                trainable.step(index, optimizer, inspect=False)


@contextmanager
def _process_group(device: str) -> Any:
    """The process group of all ranks that `torchrun` has started."""
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, rank, size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    # After a restart, the store of torchrun (PyTorch 2.13) still has the addresses of the ranks that have ended.
    attempt = dist.PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)  # type: ignore[attr-defined]
    backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
    dist.init_process_group(backend, store=attempt, rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
