"""Homogenizers for checks of learners: they record the learner's calls or change features, weights and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog import keyed
from gradhomog.step.homogenizer import Homogenizer, Part, Removable
from gradhomog.step.step import Step, TaskKey


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a stage, or of the encoder (`"encode"`) while the recorder is attached."""

    stage: str
    keys: Sequence[TaskKey] = ()
    part: str = ""
    tensor: Tensor | None = None


class Recorder(Homogenizer):
    """Records every call of `attach`, `begin`, `transform`, `mix` and `update`, and changes nothing."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def on_call(self, call: Call) -> None:
        """Called after every recorded call; for subclasses."""

    def _record(self, stage: str, keys: Sequence[TaskKey] = (), part: str = "", tensor: Tensor | None = None) -> None:
        self.calls.append(Call(stage, tuple(keys), part, None if tensor is None else tensor.detach()))
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
