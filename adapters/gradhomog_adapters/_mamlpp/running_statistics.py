"""Running statistics of batch normalization per inner step: recorded in training, used at meta-test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from gradhomog import OptionError
from gradhomog_adapters._mamlpp.step_parameters import batch_norm_layers
from gradhomog_adapters._network import Network, buffer_module
from gradhomog_adapters.few_shot import Support


def statistics(network: Network, slots: int) -> nn.Module:
    """Buffers `<name>` `[slots, ...]`: `slots` copies of the layers' running statistics.

    Raises:
        OptionError: a layer has no running statistics.
    """
    found: dict[str, Tensor] = {}
    for name, layer in batch_norm_layers(network).items():
        if layer.running_mean is None:
            raise OptionError(
                f"`norm` 'running' needs layers with running statistics; `{name}`, a {type(layer).__name__}, has none "
                "(track_running_stats=False). Use 'batch' or 'support'."
            )
        for part, buffer in layer.named_buffers(recurse=False):
            found[f"{name}.{part}"] = torch.stack([buffer] * slots)
    return buffer_module(found)


class RunningStatistics:
    """Replaces the network's running statistics by those of a slot, within `read` or `record`."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._active: Mapping[str, Tensor] = {}

    def at_step(self, support: Support, slot: int) -> Support:
        """Support set with the buffers of a slot; they are views, which layers update while recording."""
        if not self._active:
            return support
        return replace(support, buffers={**support.buffers, **{n: b[slot] for n, b in self._active.items()}})

    @contextmanager
    def read(self, statistics: Mapping[str, Tensor]) -> Iterator[None]:
        """Context in which layers normalize with these statistics."""
        with self._activate(statistics, training=False):
            yield

    @contextmanager
    def record(self, statistics: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Context in which layers normalize with each batch and update a copy of `statistics` with their `momentum`."""
        found = {name: buffer.clone() for name, buffer in statistics.items()}
        with self._activate(found, training=True):
            yield found

    @contextmanager
    def _activate(self, statistics: Mapping[str, Tensor], training: bool) -> Iterator[None]:
        layers = list(dict.fromkeys(batch_norm_layers(self.network).values()))
        before = [(layer.training, layer.track_running_stats) for layer in layers]
        try:
            self._active = statistics
            for layer in layers:
                layer.training, layer.track_running_stats = training, True
            yield
        finally:
            self._active = {}
            for layer, (was, tracks) in zip(layers, before, strict=True):
                layer.training, layer.track_running_stats = was, tracks
