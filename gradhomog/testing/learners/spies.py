"""Homogenizers that look, or do one thing that must be seen: what a learner is told by them, nothing else shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog.evidence import Evidence, TaskKey
from gradhomog.homogenizer import Homogenizer, Part, Removable
from gradhomog.rows import Rows


@dataclass(frozen=True, eq=False)
class Note:
    """One call: of a stage, or of the encoder (`"encode"`) while something is attached to it."""

    stage: str
    keys: Sequence[TaskKey] = ()
    part: str = ""
    tensor: Tensor | None = None


class Spy(Homogenizer):
    """Acts at every stage and changes nothing; writes down what it is told, and calls `act` with each note."""

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def act(self, note: Note) -> None:
        """For those that do something at a stage."""

    def _note(self, stage: str, keys: Sequence[TaskKey] = (), part: str = "", tensor: Tensor | None = None) -> None:
        self.notes.append(Note(stage, tuple(keys), part, None if tensor is None else tensor.detach()))
        self.act(self.notes[-1])

    def attach(self, encoder: nn.Module) -> list[Removable]:
        self._note("attach")

        def before(module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
            self._note(
                "encode", tensor=next(value for value in (*inputs, *named.values()) if isinstance(value, Tensor))
            )

        return [encoder.register_forward_pre_hook(before, with_kwargs=True)]

    def begin(self, key: TaskKey, part: Part) -> None:
        self._note("begin", [key], part)

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        self._note("transform", keys, tensor=features)
        return features

    def mix(self, evidence: Evidence) -> Tensor:
        self._note("mix", evidence.keys)
        return torch.ones(evidence.tasks, dtype=torch.float64)

    def rows(self, jacobian: Rows) -> Rows:
        self._note("rows")
        return jacobian

    def update(self, evidence: Evidence) -> None:
        self._note("update", evidence.keys)


class Blind(Homogenizer):
    """While attached, the encoder's features are all zero."""

    def attach(self, encoder: nn.Module) -> list[Removable]:
        return [encoder.register_forward_hook(lambda module, inputs, features: 0 * features)]


class Erase(Homogenizer):
    """Query features become zero on their way to the head."""

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        return 0 * features


class Shift(Homogenizer):
    """Query features are doubled, and moved by `size` along a random direction of each slot."""

    factor = 2.0

    def __init__(self) -> None:
        self.size = 0.0
        self.directions: dict[int, Tensor] = {}

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        for key in keys:
            if key.slot not in self.directions:
                generator = torch.Generator().manual_seed(key.slot)
                shape = features.shape[1:]
                self.directions[key.slot] = torch.randn(shape, generator=generator, dtype=torch.float64)
        moved = torch.stack([self.directions[key.slot] for key in keys]).to(features)
        return self.factor * features + self.size * moved


class Opinion(Homogenizer):
    """Weights that depend on all that a homogenizer may be shown, and on what it was shown in the steps before."""

    carried = ("memory",)

    def __init__(self) -> None:
        self.memory: dict[str, Tensor] = {}

    def mix(self, evidence: Evidence) -> Tensor:
        return torch.stack([1 + value.tanh() / 2 for value in self._values(evidence)])

    def update(self, evidence: Evidence) -> None:
        for key, value in zip(evidence.by("domain"), self._values(evidence), strict=True):
            self.memory[key] = value

    def _values(self, evidence: Evidence) -> list[Tensor]:
        """One number per task."""
        shown = evidence.losses + evidence.norms() + evidence.targets.double().flatten(1).mean(1)
        for tensor in (evidence.features, evidence.feature_cotangents):
            shown = shown + tensor.double().flatten(1).square().mean(1)
        domains = evidence.by("domain")
        before = [self.memory.get(domain, torch.tensor(0.0)) for domain in domains]
        names = [sum(map(ord, domain)) % 7 / 7 for domain in domains]
        return [now + name + then / 2 for now, name, then in zip(shown, names, before, strict=True)]
