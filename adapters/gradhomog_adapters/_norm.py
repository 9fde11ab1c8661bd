"""What batch normalization normalizes with, by name, and without any leak from one task to another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradhomog import OptionError

Norm = Literal["batch", "support", "frozen"]
"""`"batch"`: each forward pass with the statistics of its own batch, at meta-test too (transductive: MAML's published
results, queries see each other). `"support"`: queries with the statistics of the support set under the adapted
parameters, with their gradient (inductive: queries can come one by one). `"frozen"`: with the running statistics that
the network came with. Running statistics are never written under any of them."""


class SupportStatistics:
    """For `norm="support"`: records each normalization's statistics on the support set, then uses them for queries."""

    def __init__(self, layers: Iterable[_BatchNorm]) -> None:
        self.layers = tuple(layers)
        # By layer, one entry per call: a layer may be used several times in a forward pass.
        self.recorded: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self.played: dict[int, int] = {}
        self.replaying = False

    def record(self) -> None:
        """Forget what was recorded: the next forward pass is the one whose statistics count."""
        self.recorded.clear()

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Within the context the recorded statistics are used."""
        self.replaying = True
        self.played.clear()
        try:
            yield
        finally:
            self.replaying = False

    def forward_of(self, layer: _BatchNorm) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            if self.replaying:
                call = self.played.get(id(layer), 0)
                self.played[id(layer)] = call + 1
                mean, variance = self.recorded[id(layer)][call]
            else:
                dims = [0, *range(2, x.dim())]
                mean, variance = x.mean(dims), x.var(dims, unbiased=False)
                self.recorded.setdefault(id(layer), []).append((mean, variance))
            shape = [1, -1] + [1] * (x.dim() - 2)
            normalized = (x - mean.view(shape)) * torch.rsqrt(variance.view(shape) + layer.eps)
            if layer.affine:
                normalized = normalized * layer.weight.view(shape) + layer.bias.view(shape)
            return normalized

        return forward


@contextmanager
def policy(modules: Iterable[nn.Module], norm: Norm) -> Iterator[SupportStatistics]:
    """Within the context batch normalizations follow the policy; afterwards all is as before, whatever happens."""
    layers = [part for module in modules for part in module.modules() if isinstance(part, _BatchNorm)]
    layers = list(dict.fromkeys(layers))
    for layer in layers:
        if norm == "frozen" and layer.running_mean is None:
            raise OptionError(
                f"`norm` 'frozen' needs running statistics; a {type(layer).__name__} of the network has none "
                "(track_running_stats=False). Use 'batch' or 'support'."
            )
    statistics = SupportStatistics(layers)
    before = [layer.training for layer in layers]
    try:
        for layer in layers:
            layer.training = norm != "frozen"
            if norm == "support":
                layer.forward = statistics.forward_of(layer)  # type: ignore[method-assign, assignment]
        yield statistics
    finally:
        for layer, was in zip(layers, before, strict=True):
            layer.training = was
            layer.__dict__.pop("forward", None)
