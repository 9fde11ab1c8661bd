"""Other computations of gradients of several losses: by hand, of the sum, and with TorchJD."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torchjd import autojac

from tests.benchmarks import combine_peers

BY_HAND, SUMMED = "by hand", "sum(losses).backward()"

Backward = Callable[[Sequence[Tensor], Tensor, nn.Module], None]
"""Writes `.grad` from the losses, the features that they depend on, and the encoder of these features."""


def by_hand(losses: Sequence[Tensor], features: Tensor, encoder: nn.Module) -> None:
    """One backward pass per loss: the usual computation of task gradients."""
    for index, loss in enumerate(losses):
        (loss / len(losses)).backward(retain_graph=index < len(losses) - 1)


def summed(losses: Sequence[Tensor], features: Tensor, encoder: nn.Module) -> None:
    """One backward pass of the sum of losses, without task gradients."""
    sum(losses[1:], losses[0]).backward()


def torchjd(name: str) -> dict[str, Backward]:
    """`mtl_backward` and `jac_to_grad` of TorchJD with an aggregator, by label: batched (its default), and per loss."""
    aggregator = combine_peers.aggregator(name, 1)

    def with_chunk_size(chunk: int | None) -> Backward:
        def backward(losses: Sequence[Tensor], features: Tensor, encoder: nn.Module) -> None:
            autojac.mtl_backward(losses, features=features, parallel_chunk_size=chunk)
            autojac.jac_to_grad(encoder.parameters(), aggregator)

        return backward

    return {f"torchjd {name}": with_chunk_size(None), f"torchjd {name}, chunk 1": with_chunk_size(1)}
