"""Benchmark of one step of a network with several losses: `gradhomog.backward`, hand-written loops, and TorchJD."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchjd import autojac

import gradhomog
from gradhomog.experiments.profiling.harness import CPU, Comparison, Timings
from gradhomog.experiments.run_file import content
from tests.benchmarks import combine
from tests.benchmarks.benchmark import Benchmark
from tests.benchmarks.columns import Column, ComparisonWithColumns

SHAPES = (*((tasks, 64, 256) for tasks in (2, 4, 8)), *((tasks, 3, 32, 32) for tasks in (2, 4, 8)))
EXPRESSIONS = ("none", "pcgrad", "mgda", "upgrad")
BY_HAND, SUMMED = "by hand", "sum(losses).backward()"
LEVEL = 'level="features"'
VECTORS, IMAGES = 64, 25
"""Batch sizes."""
FEATURES = 128
"""Number of outputs of the mlp."""
GROUPS = 8
"""Number of groups of group normalization, if it divides the number of filters."""

# -- inputs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Inputs `[batch, ...]`, the same for all tasks, and targets `[tasks, batch, 1]`."""

    inputs: Tensor
    targets: Tensor


class Network(nn.Module):
    """An encoder, and a linear head with one output for each task; `forward` returns the mean of the losses."""

    def __init__(self, encoder: nn.Module, features: int, tasks: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleList(nn.Linear(features, 1) for _ in range(tasks))

    def forward(self, batch: Batch) -> Tensor:
        return torch.stack(self.losses(self.encoder(batch.inputs), batch, range(len(self.heads)))).mean()

    def losses(self, features: Tensor, batch: Batch, chosen: Collection[int]) -> list[Any]:
        """The losses of the chosen tasks; None for the others."""
        pairs = enumerate(zip(self.heads, batch.targets, strict=True))
        return [functional.mse_loss(head(features), y) if task in chosen else None for task, (head, y) in pairs]


@dataclass(frozen=True)
class Setting:
    """A network with a head per task, and its batches; drawn in float32, so that all dtypes have the same numbers.

    Attributes:
        encoder: creates an encoder; returns it with its number of features.
        inputs: shape of the inputs of a batch.
    """

    title: str
    tasks: int
    encoder: Callable[[], tuple[nn.Module, int]]
    inputs: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU

    def network(self) -> Network:
        """A new network with the same parameters in every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return Network(*self.encoder(), self.tasks).to(self.device, self.dtype)

    def batch(self, number: int) -> Batch:
        """The batch of a round."""
        random = torch.Generator().manual_seed(number)
        shapes = self.inputs, (self.tasks, self.inputs[0], 1)
        return Batch(*(torch.randn(shape, generator=random).to(self.device, self.dtype) for shape in shapes))


def mlp(tasks: int, inputs: int, hidden: int) -> Setting:
    return Setting(
        f"mlp {inputs}-{hidden}-{hidden}-{FEATURES}, {tasks} heads, {VECTORS} vectors", tasks,
        lambda: (nn.Sequential(*content.build_network("mlp", (inputs,), FEATURES, hidden)), FEATURES),
        (VECTORS, inputs),
    )  # fmt: skip


def conv4(tasks: int, channels: int, pixels: int, filters: int) -> Setting:
    def encoder() -> tuple[nn.Module, int]:
        """Group normalization instead of batch normalization, whose running statistics change in every step."""
        layers, groups = content.build_network("conv4", image, 1, filters)[0].children(), gcd(GROUPS, filters)
        norms = (nn.GroupNorm(groups, filters) if isinstance(layer, nn.BatchNorm2d) else layer for layer in layers)
        return nn.Sequential(*norms), filters * (pixels // 16) ** 2

    image = (channels, pixels, pixels)
    title = f"conv4 with group normalization, {filters} filters, {tasks} heads, {IMAGES} images {image}"
    return Setting(title, tasks, encoder, (IMAGES, *image))


FORMS = {"tasks x inputs x hidden (mlp)": mlp, "tasks x channels x pixels x filters (conv4)": conv4}

# -- implementations -----------------------------------------------------------------------------------------------

Backward = Callable[[Sequence[Tensor], Tensor, nn.Module], None]
"""Writes `.grad` from the losses, the features that they depend on, and the encoder of these features."""

Choose = Callable[[int], Collection[int]]
"""Returns the tasks of a step from the number of all tasks."""


def by_hand(losses: Sequence[Tensor], features: Tensor, encoder: nn.Module) -> None:
    """One backward pass per loss: the usual computation of task gradients."""
    for index, loss in enumerate(losses):
        (loss / len(losses)).backward(retain_graph=index < len(losses) - 1)


def summed(losses: Sequence[Tensor], features: Tensor, encoder: nn.Module) -> None:
    """One backward pass of the sum of losses, without task gradients."""
    sum(losses[1:], losses[0]).backward()


def homogenized(pipe: gradhomog.Pipeline, variant: str = "", **options: Any) -> Backward:
    """Return a call of `gradhomog.backward`; `variant` is empty, `features` or `LEVEL`."""
    level: Literal["parameters", "features"] = "features" if variant == LEVEL else "parameters"

    def backward(losses: Sequence[Tensor], features: Tensor, encoder: nn.Module) -> None:
        used = features if variant else None
        gradhomog.backward(losses, pipe, parameters=encoder, features=used, level=level, **options)

    return backward


def torchjd(name: str, chunk: int | None) -> Backward:
    """`mtl_backward` and `jac_to_grad` of TorchJD with an aggregator; batched for `chunk` None, its default."""
    aggregator = combine.aggregator(name, 1)

    def backward(losses: Sequence[Tensor], features: Tensor, encoder: nn.Module) -> None:
        autojac.mtl_backward(losses, features=features, parallel_chunk_size=chunk)
        autojac.jac_to_grad(encoder.parameters(), aggregator)

    return backward


class Step:
    """Forward pass, losses, and gradients in `.grad`; without an optimizer, so that parameters are constant."""

    def __init__(self, backward: Backward, network: Network, choose: Choose = range) -> None:
        self.backward, self.network, self.choose = backward, network, choose

    def __call__(self, batch: Batch) -> None:
        self.network.zero_grad()
        features = self.network.encoder(batch.inputs)
        losses = self.network.losses(features, batch, self.choose(len(self.network.heads)))
        self.backward(losses, features, self.network.encoder)


def steps(texts: Sequence[str], setting: Setting) -> dict[str, Step]:
    """The steps by label, each with its own network."""
    found = {BY_HAND: by_hand, SUMMED: summed}
    choose: dict[str, Choose] = {}
    for text in texts or EXPRESSIONS:
        # The mean is the same at the level of features. For other methods, features without `level` have no effect.
        variant = "features" if text == "none" else LEVEL
        for label, used in ((f"backward {text}", ""), (f"backward {text}, {variant}", variant)):
            pipe = gradhomog.pipeline(text)
            found[label], choose[label] = homogenized(pipe, used), pipe.choose
            if pipe.requirements.choosing:
                break  # `tracked` differentiates the losses of some tasks w.r.t. the parameters
    for name in ("Mean", "UPGrad"):
        found |= {f"torchjd {name}": torchjd(name, None), f"torchjd {name}, chunk 1": torchjd(name, 1)}
    return {label: Step(backward, setting.network(), choose.get(label, range)) for label, backward in found.items()}


MEANS = (
    BY_HAND, SUMMED, "backward none", "backward none, features", "torchjd Mean", "torchjd Mean, chunk 1",
)  # fmt: skip
"""Steps whose gradient of the encoder is the mean of the task gradients, up to a factor."""


def gradient(network: nn.Module) -> Tensor:
    """`.grad` of all parameters, `[params]` in float64; zeros for parameters without it."""
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).double().ravel() for p in network.parameters()]
    )


def cosine_to(
    exact: Callable[[], nn.Module], networks: Mapping[str, nn.Module]
) -> Callable[[Timings], Sequence[Column]]:
    """A column with the cosine between `.grad` of a network and that of `exact()`, by label."""

    def columns(timings: Timings) -> Sequence[Column]:
        expected = gradient(exact())
        values = {
            label: float(torch.cosine_similarity(gradient(networks[label]), expected, dim=0))
            for label in timings.finished
            if label in networks
        }
        return [Column("cosine", values, lambda value: f"{value:.6f}")]

    return columns


def exact_gradient(setting: Setting) -> nn.Module:
    """The encoder after a step by hand in float64, on the first batch."""
    double = dataclasses.replace(setting, dtype=torch.float64)
    step = Step(by_hand, double.network())
    step(double.batch(0))
    return step.network.encoder


def compare(texts: Sequence[str], setting: Setting) -> Comparison:
    made = steps(texts, setting)
    encoders = {label: made[label].network.encoder for label in MEANS if label in made}
    return ComparisonWithColumns(
        f"one step: {setting.title}", made, setting.batch, BY_HAND,
        (
            "A step: forward, one loss per linear head, gradients into .grad; no optimizer.",
            f"{BY_HAND}: one backward pass per loss, each adds 1/N of the gradient. chunk 1: parallel_chunk_size=1.",
            f"cosine: between the mean gradient of the encoder and that of {BY_HAND} in float64, on the first batch.",
        ),
        others=(SUMMED,), columns=cosine_to(functools.partial(exact_gradient, setting), encoders),
    )  # fmt: skip


BENCHMARK = Benchmark("backward", FORMS, SHAPES, compare)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main(__doc__))
