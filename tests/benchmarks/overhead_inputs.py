"""Large networks with several heads, and their batches, for the benchmark of overheads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradhomog.experiments import models
from tests.benchmarks.backward_inputs import Batch, Network

FORMS = (
    "tasks x pixels (resnet10)", "tasks x layers x width (transformer)", "tasks x channels x pixels x filters (conv4)"
)  # fmt: skip
IMAGES, SEQUENCES, TOKENS = 25, 8, 128
"""Batch sizes, and the length of a sequence."""
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Transformer(nn.Module):
    """Encoder layers without dropout; features are the means over the tokens."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.layers(tokens).mean(1)
        return found


@dataclass(frozen=True)
class Setting:
    """A network of one shape, one of `FORMS`, and its batches on the device."""

    shape: Sequence[int]

    @property
    def title(self) -> str:
        tasks, *sizes = self.shape
        with torch.device("meta"):  # without memory
            numbers = sum(parameter.numel() for parameter in self._encoder()[0].parameters())
        network = {
            1: lambda: f"resnet10, {IMAGES} images (3, {sizes[0]}, {sizes[0]})",
            2: lambda: f"transformer, {sizes[0]} layers of width {sizes[1]}, {SEQUENCES} times {TOKENS} tokens",
            3: lambda: f"conv4, {sizes[2]} filters, {IMAGES} images ({sizes[0]}, {sizes[1]}, {sizes[1]})",
        }[len(sizes)]()
        device = torch.cuda.get_device_name(DEVICE) if DEVICE.type == "cuda" else "CPU"
        return f"{network}, {numbers / 1e6:.3g} million shared parameters, {tasks} heads, {device}"

    def network(self) -> Network:
        """A new network with the same parameters in every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            encoder, features = self._encoder()
            return Network(encoder, features, self.shape[0]).to(DEVICE)

    def batch(self, number: int) -> Batch:
        """The batch of a round."""
        tasks, *sizes = self.shape
        random = torch.Generator().manual_seed(number)
        channels, pixels = (sizes[0], sizes[1]) if len(sizes) == 3 else (3, sizes[0])
        example = (TOKENS, sizes[1]) if len(sizes) == 2 else (channels, pixels, pixels)
        count = SEQUENCES if len(sizes) == 2 else IMAGES
        inputs, targets = (torch.randn(*shape, generator=random) for shape in ((count, *example), (tasks, count, 1)))
        return Batch(inputs.to(DEVICE), targets.to(DEVICE))

    def _encoder(self) -> tuple[nn.Module, int]:
        """A new encoder, and its number of features."""
        sizes = self.shape[1:]
        if len(sizes) == 2:
            return Transformer(*sizes), sizes[1]
        if len(sizes) == 1:
            encoder, head = models.build("resnet10", (3, sizes[0], sizes[0]), 1, 64)
        else:
            encoder, head = models.build("conv4", (sizes[0], sizes[1], sizes[1]), 1, sizes[2])
        assert isinstance(head, nn.Linear)
        return encoder, head.in_features
