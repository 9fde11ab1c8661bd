"""Gradients of several losses as others take them: by hand, summed, with TorchJD; for comparison only."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from gradhomog.experiments.profiling import combine_peers

BY_HAND, SUMMED = "by hand", "sum(losses).backward()"

Way = Callable[[Sequence[Tensor], Tensor, nn.Module], None]
"""From the losses, the features that they depend on, and the encoder that made those, to `.grad` of the parameters."""


def by_hand(losses: Sequence[Tensor], features: Tensor, encoder: nn.Module) -> None:
    """One backward pass per loss: what is done where each task's gradient is to be seen."""
    for index, loss in enumerate(losses):
        (loss / len(losses)).backward(retain_graph=index < len(losses) - 1)  # type: ignore[no-untyped-call]


def summed(losses: Sequence[Tensor], features: Tensor, encoder: nn.Module) -> None:
    """One backward pass, after which nobody knows a task's gradient."""
    sum(losses[1:], losses[0]).backward()  # type: ignore[no-untyped-call]


def torchjd(name: str) -> dict[str, Way]:
    """TorchJD's two lines with an aggregator, by label: as they are by default, and one pass after the other.

    Raises:
        ImportError: it is not installed.
    """
    aggregator = combine_peers.aggregator(name, 1)
    autojac = importlib.import_module("torchjd.autojac")

    def way(chunk: int | None) -> Way:
        def step(losses: Sequence[Tensor], features: Tensor, encoder: nn.Module) -> None:
            autojac.mtl_backward(losses, features=features, parallel_chunk_size=chunk)
            autojac.jac_to_grad(encoder.parameters(), aggregator)

        return step

    return {f"torchjd {name}": way(None), f"torchjd {name}, chunk 1": way(1)}
