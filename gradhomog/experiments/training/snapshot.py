"""The state of a training at a step, in checkpoints: network, optimizer and random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import torch
from torch import Tensor

from gradhomog.experiments.results.events import Count
from gradhomog.experiments.training.trainable import Trainable


class Snapshot(TypedDict):
    """The entries of every checkpoint; `digest` is the hash of the configuration, `done` the number of steps."""

    digest: str
    done: Count
    trained: dict[str, Any]
    outer: dict[str, Any]
    random: Tensor
    random_cuda: Tensor | None


def take_snapshot(
    digest: str, done: int, trainable: Trainable, optimizer: torch.optim.Optimizer, device: torch.device
) -> Snapshot:
    return {
        "digest": digest,
        "done": done,
        "trained": dict(trainable.state_dict()),
        "outer": optimizer.state_dict(),
        # Dropout, for example, draws from the global generators.
        "random": torch.get_rng_state(),
        "random_cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore_snapshot(
    state: Mapping[str, Any],
    trainable: Trainable,
    optimizer: torch.optim.Optimizer,
    device: torch.device | None = None,
) -> int:
    """Load a snapshot, without the generator of the GPU if there is no `device`; return its number of steps."""
    trainable.load_state_dict(state["trained"])
    optimizer.load_state_dict(state["outer"])
    torch.set_rng_state(state["random"])
    if device is not None and state["random_cuda"] is not None:
        torch.cuda.set_rng_state(state["random_cuda"], device)
    return int(state["done"])
