"""The mode of a network in a learner: statistics of batch normalization, and correct second derivatives."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrizations import _WeightNorm

from gradhomog import OptionError

Norm = Literal["batch", "support", "frozen"]
"""See `Execution`."""


Statistics = dict[int, list[tuple[Tensor, Tensor]]]
"""Mean and variance by layer index, one entry per call: a forward pass can use a layer several times."""


class SupportStatistics:
    """The batch normalization layers of a network under `norm="support"`: record and replay their statistics."""

    def __init__(self, layers: Iterable[_BatchNorm]) -> None:
        self.layers = tuple(layers)
        self._recorded: Statistics | None = None
        self._replayed: Statistics | None = None
        self._calls: dict[int, int] = {}

    @contextmanager
    def record(self) -> Iterator[Statistics]:
        """Context that records the statistics of each batch, with their graph."""
        self._recorded = {}
        try:
            yield self._recorded
        finally:
            self._recorded = None

    @contextmanager
    def replay(self, statistics: Statistics) -> Iterator[None]:
        """Context in which layers use these statistics; if empty, those of each batch."""
        self._replayed, self._calls = statistics or None, {}
        try:
            yield
        finally:
            self._replayed = None

    def forward_of(self, index: int) -> Callable[[Tensor], Tensor]:
        layer = self.layers[index]

        def forward(x: Tensor) -> Tensor:
            if self._replayed is not None:
                call = self._calls.get(index, 0)
                self._calls[index] = call + 1
                mean, variance = self._replayed[index][call]
            else:
                dims = [0, *range(2, x.dim())]
                mean, variance = x.mean(dims), x.var(dims, unbiased=False)
                if self._recorded is not None:
                    self._recorded.setdefault(index, []).append((mean, variance))
            shape = [1, -1] + [1] * (x.dim() - 2)
            normalized = (x - mean.view(shape)) * torch.rsqrt(variance.view(shape) + layer.eps)
            if layer.affine:
                normalized = normalized * layer.weight.view(shape) + layer.bias.view(shape)
            return normalized

        return forward


@contextmanager
def norm_policy(modules: Iterable[nn.Module], norm: Norm | Literal["running"]) -> Iterator[SupportStatistics]:
    """Context in which batch normalization layers use the statistics of `norm`; restored afterwards, also on errors.

    `"running"`: those of each batch, which also update the running statistics with the layers' `momentum`.
    """
    layers = [part for module in modules for part in module.modules() if isinstance(part, _BatchNorm)]
    layers = list(dict.fromkeys(layers))
    for layer in layers:
        if norm == "frozen" and layer.running_mean is None:
            raise OptionError(
                f"`norm` 'frozen' needs running statistics; a {type(layer).__name__} of the network has none "
                "(track_running_stats=False). Use 'batch' or 'support'."
            )
    statistics = SupportStatistics(layers)
    before = [(layer.training, layer.track_running_stats) for layer in layers]
    try:
        for index, layer in enumerate(layers):
            layer.training = norm != "frozen"
            layer.track_running_stats = norm in ("frozen", "running")  # others neither read nor write such statistics
            if norm == "support":
                layer.forward = statistics.forward_of(index)  # type: ignore[method-assign, assignment]
        yield statistics
    finally:
        for layer, (training, tracking) in zip(layers, before, strict=True):
            layer.training, layer.track_running_stats = training, tracking
            layer.__dict__.pop("forward", None)


@contextmanager
def enable_second_derivatives(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Context in which attention and weight normalization have correct second derivatives.

    Attention: the fast kernels have no second derivative; the math kernel has one. Weight normalization: the second
    derivative of the fused kernel is wrong without an error (PyTorch 2.13, docs/decisions/0013); w = g v/‖v‖ is
    computed with elementary operations instead.
    """
    layers = {part for module in modules for part in module.modules() if isinstance(part, _WeightNorm)}
    try:
        for layer in layers:
            layer.forward = _weight_norm_of(layer)  # type: ignore[method-assign]
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)


def _weight_norm_of(layer: _WeightNorm) -> Callable[[Tensor, Tensor], Tensor]:
    def forward(weight_g: Tensor, weight_v: Tensor) -> Tensor:
        kept = None if layer.dim == -1 else layer.dim % weight_v.dim()
        others = [dim for dim in range(weight_v.dim()) if dim != kept]
        length: Tensor = torch.linalg.vector_norm(weight_v, dim=others, keepdim=True)
        return weight_v * (weight_g / length)

    return forward
