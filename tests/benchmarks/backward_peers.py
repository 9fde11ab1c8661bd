"""Gradients of several losses in other ways: by hand, of the sum, with TorchJD."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torchjd import autojac

from tests.benchmarks import combine_peers

BY_HAND, SUMMED = "by hand", "sum(losses).backward()"

Backward = Callable[[Sequence[Tensor], Tensor, nn.Module], None]
"""Writes `.grad`, given the losses, the features that they depend on, and the encoder of these features."""


def by_hand(losses: Sequence[Tensor], features: Tensor, encoder: nn.Module) -> None:
    """One backward pass per loss: the usual way to the gradient of each task."""
    for index, loss in enumerate(losses):
        (loss / len(losses)).backward(retain_graph=index < len(losses) - 1)


def summed(losses: Sequence[Tensor], features: Tensor, encoder: nn.Module) -> None:
    """One backward pass, without gradients of single tasks."""
    sum(losses[1:], losses[0]).backward()


def torchjd(name: str) -> dict[str, Backward]:
    """TorchJD's two lines with an aggregator, by label: batched, which is the default, and one pass per loss."""
    aggregator = combine_peers.aggregator(name, 1)

    def chunked(chunk: int | None) -> Backward:
        def backward(losses: Sequence[Tensor], features: Tensor, encoder: nn.Module) -> None:
            autojac.mtl_backward(losses, features=features, parallel_chunk_size=chunk)
            autojac.jac_to_grad(encoder.parameters(), aggregator)

        return backward

    return {f"torchjd {name}": chunked(None), f"torchjd {name}, chunk 1": chunked(1)}
