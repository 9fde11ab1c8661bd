"""Running statistics by inner step: those that batch normalization reads at meta-test, and those it records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from gradhomog import OptionError
from gradhomog_adapters._mamlpp.by_step import normalizations
from gradhomog_adapters._network.functional import Network
from gradhomog_adapters._network.mirror import mirror_buffers
from gradhomog_adapters.few_shot import Support


def statistics(network: Network, slots: int) -> nn.Module:
    """Buffers `<name>` `[slots, ...]`: the layers' running statistics, so many times.

    Raises:
        OptionError: a layer has none.
    """
    found: dict[str, Tensor] = {}
    for name, layer in normalizations(network).items():
        if layer.running_mean is None:
            raise OptionError(
                f"`norm` 'running' needs layers with running statistics; `{name}`, a {type(layer).__name__}, has none "
                "(track_running_stats=False). Use 'batch' or 'support'."
            )
        for part, buffer in layer.named_buffers(recurse=False):
            found[f"{name}.{part}"] = torch.stack([buffer] * slots)
    return mirror_buffers(found)


class Running:
    """The statistics of a slot in place of the network's own, within `reading` or `recording`."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._used: Mapping[str, Tensor] = {}

    def at_step(self, support: Support, slot: int) -> Support:
        """The same task, with buffers of a slot: views, into which a layer that records writes."""
        if not self._used:
            return support
        return replace(support, buffers={**support.buffers, **{n: b[slot] for n, b in self._used.items()}})

    @contextmanager
    def reading(self, statistics: Mapping[str, Tensor]) -> Iterator[None]:
        """Within the context layers normalize with these."""
        with self._in_use(statistics, training=False):
            yield

    @contextmanager
    def recording(self, statistics: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Within the context layers normalize with each batch, and average its statistics into a copy of these by their
        own rule (`momentum`)."""
        found = {name: buffer.clone() for name, buffer in statistics.items()}
        with self._in_use(found, training=True):
            yield found

    @contextmanager
    def _in_use(self, statistics: Mapping[str, Tensor], training: bool) -> Iterator[None]:
        layers = list(dict.fromkeys(normalizations(self.network).values()))
        before = [(layer.training, layer.track_running_stats) for layer in layers]
        try:
            self._used = statistics
            for layer in layers:
                layer.training, layer.track_running_stats = training, True
            yield
        finally:
            self._used = {}
            for layer, (was, tracks) in zip(layers, before, strict=True):
                layer.training, layer.track_running_stats = was, tracks
