"""A small smooth network, few-shot tasks for it, and homogenizers that record or change what a learner does with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog import keyed
from gradhomog.learners.tasks import Task, TaskBatch
from gradhomog.step.homogenizer import Homogenizer, Part, Removable
from gradhomog.step.step import Step, TaskKey

WAYS, SIDE = 3, 6


def network(seed: int = 0, outputs: int = WAYS, norm: bool = False) -> tuple[nn.Module, nn.Module]:
    """An encoder of two convolutions and a linear head. It is smooth, so finite differences are accurate.

    With `norm`, batch normalization follows each convolution, and there are five features instead of four: no plugin
    may rely on their number. The global generator is not changed.
    """
    features = 4 + norm
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), *([nn.BatchNorm2d(3)] * norm), nn.Tanh(), nn.AvgPool2d(2),
            nn.Conv2d(3, features, 3, padding=1), *([nn.BatchNorm2d(features)] * norm), nn.Tanh(), nn.AvgPool2d(3),
            nn.Flatten(),
        )  # fmt: skip
        head = nn.Linear(features, outputs)
    return encoder.double(), head.double()


def task(seed: int, domain: str = "", shots: int = 2, queries: int = 2, targets: int | None = None) -> Task:
    """A task of images `[n, 1, 6, 6]` of three classes: one centre per class, plus noise; the seed sets the scale.

    With `targets`, a regression task with that number of targets per image.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(WAYS, 1, SIDE, SIDE, generator=generator, dtype=torch.float64)
    size = 0.5 + torch.rand((), generator=generator, dtype=torch.float64)
    parts: list[Tensor] = []
    for count in (shots, queries):
        classes = torch.arange(WAYS).repeat(count)
        noise = torch.randn(len(classes), 1, SIDE, SIDE, generator=generator, dtype=torch.float64)
        images = size * (centres[classes] + 0.5 * noise)
        parts += [images, classes if targets is None else _regression_targets(images, targets)]
    return Task(parts[0], parts[1], parts[2], parts[3], domain)


def _regression_targets(images: Tensor, count: int) -> Tensor:
    return torch.sin(images.flatten(1)[:, :count] + images.mean(dim=(1, 2, 3))[:, None])


def batch(seed: int = 0, tasks: int = 3) -> TaskBatch:
    """Different tasks, each of another domain."""
    return TaskBatch.stack([task(100 * seed + index, f"domain {index}") for index in range(tasks)])


@dataclass(frozen=True, eq=False)
class StageCall:
    """One call of a stage, or of the encoder (`"encode"`) while the recorder is attached."""

    stage: str
    keys: Sequence[TaskKey] = ()
    part: str = ""
    tensor: Tensor | None = None


class Recorder(Homogenizer):
    """Records every call of `attach`, `begin`, `transform`, `mix` and `update`, and changes nothing."""

    def __init__(self) -> None:
        self.calls: list[StageCall] = []

    def on_call(self, call: StageCall) -> None:
        """Called after every recorded call; for subclasses."""

    def _record(self, stage: str, keys: Sequence[TaskKey] = (), part: str = "", tensor: Tensor | None = None) -> None:
        self.calls.append(StageCall(stage, tuple(keys), part, None if tensor is None else tensor.detach()))
        self.on_call(self.calls[-1])

    def attach(self, encoder: nn.Module) -> list[Removable]:
        self._record("attach")

        def record_inputs(module: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
            tensors = (value for value in (*inputs, *keywords.values()) if isinstance(value, Tensor))
            self._record("encode", tensor=next(tensors))

        return [encoder.register_forward_pre_hook(record_inputs, with_kwargs=True)]

    def begin(self, key: TaskKey, part: Part, generator: torch.Generator) -> None:
        self._record("begin", [key], part)

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        self._record("transform", keys, tensor=features)
        return features

    def mix(self, step: Step) -> Tensor:
        self._record("mix", step.keys)
        return torch.ones(step.tasks, dtype=torch.float64)

    def update(self, step: Step) -> dict[str, Any]:
        self._record("update", step.keys)
        return {}


class ZeroEncoder(Homogenizer):
    """Sets the encoder's features to zero while attached."""

    def attach(self, encoder: nn.Module) -> list[Removable]:
        return [encoder.register_forward_hook(lambda module, inputs, features: 0 * features)]


class ZeroFeatures(Homogenizer):
    """Sets the query features to zero before the head."""

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        return 0 * features


class ShiftedFeatures(Homogenizer):
    """Doubles the query features and shifts them by `size` along a random direction per slot."""

    factor = 2.0

    def __init__(self, size: float = 0.0) -> None:
        self.size = size

    def direction(self, slot: int, features: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(slot)
        return torch.randn(features.shape[-2:], generator=generator, dtype=torch.float64).to(features)

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        return self.factor * features + self.size * torch.stack([self.direction(key.slot, features) for key in keys])


class InputDependentWeights(Homogenizer):
    """Weights that depend on all inputs of a homogenizer, in this step and in earlier ones."""

    state_names = ("memory",)

    def __init__(self) -> None:
        self.memory: dict[str, float] = {}

    def mix(self, step: Step) -> Tensor:
        return 1 + self._values(step).tanh() / 2

    def update(self, step: Step) -> dict[str, Any]:
        return {"memory": keyed.write(self.memory, step.names, self._values(step))}

    def _values(self, step: Step) -> Tensor:
        """One number per task."""
        values = step.losses + step.norms() + step.targets.double().flatten(1).mean(1)
        for tensor in (step.features, step.feature_grads):
            values = values + tensor.double().flatten(1).square().mean(1)
        domains = step.names
        names = torch.tensor([sum(map(ord, domain)) % 7 / 7 for domain in domains], dtype=torch.float64)
        return values + names + keyed.read(self.memory, domains, 0.0) / 2
