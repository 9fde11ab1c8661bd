"""Faulty side effects: writes to inputs and to the object, kept graphs, global generators."""

from __future__ import annotations

import random
import time

import numpy as np
import torch

from tests.testing.homogenizers.faults import fails
from tests.testing.homogenizers.good import Balance, Clip, Drop, Lag, Turn


@fails("inputs_unchanged", "`rows` writes to `jacobian`, in place: work on a copy")
class ClipsInPlace(Clip):
    """Saves the copy."""

    def scaled(self, block, scale):
        return block.mul_(scale.reshape(-1, *[1] * (block.dim() - 1)))


@fails("inputs_unchanged", "`rows` writes to `jacobian`")
class ClipsThroughNumPy(Clip):
    """The same through memory that autograd does not track."""

    def scaled(self, block, scale):
        block.numpy()[...] *= scale.reshape(-1, *[1] * (block.dim() - 1)).numpy()
        return block


@fails("inputs_unchanged", "`rows` writes to `jacobian`")
class ZeroesData(Clip):
    """Zeroes rows by `.data`, which raises no version counter."""

    def scaled(self, block, scale):
        block.data[scale < 1] = 0
        return block


@fails("inputs_unchanged", "`mix` writes to `losses`")
class SortsInPlace(Lag):
    """Writes weights over the losses."""

    def mix(self, step):
        weights = super().mix(step)
        step.losses.copy_(weights)
        return weights


@fails("inputs_unchanged", "`update` writes to `feature_grads`")
class NormalizesInPlace(Turn):
    """Normalizes the gradients that other homogenizers read too."""

    def update(self, step):
        step.feature_grads.div_(step.feature_grads.norm())
        return super().update(step)


@fails("no_stage_writes_to_self", "`mix` changes `self.last`: return new state from `update`")
class PassesByAttribute(Balance):
    """Passes its weights from stage to stage in an attribute."""

    def mix(self, step):
        self.last = super().mix(step)
        return self.last


@fails("no_stage_writes_to_self", "`update` changes `self.usual`")
class UpdatesInPlace(Balance):
    """Writes to the old state, and returns it."""

    def update(self, step):
        self.usual.update(super().update(step)["usual"])
        return {"usual": self.usual}


@fails("no_stage_writes_to_self", "`transform` changes `self.calls`")
class CountsTransforms(Turn):
    """Counts its calls."""

    calls = 0

    def transform(self, features, keys):
        self.calls += 1
        return super().transform(features, keys)


@fails("no_stage_writes_to_self", "`measured` changes `self.reported`")
class MarksReports(Lag):
    """Notes that it was reported."""

    def measured(self, step):
        self.reported = step.number
        return super().measured(step)


@fails("no_stage_writes_to_self", "`measured` returns other numbers when it is called again")
class MeasuresTime(Lag):
    """Reports a number of its own."""

    def measured(self, step):
        return {"seconds": time.perf_counter()}


@fails("inputs_unchanged", "`transform` writes to `features`")
class TurnsInPlace(Turn):
    """Writes the turned features over its input."""

    def transform(self, features, keys):
        turned = super().transform(features, keys) + 1
        features.data.copy_(turned.detach())
        return turned - 1


@fails("inputs_unchanged", "`support_x` after the steps: not the same")
class DropsPixels(Drop):
    """Masks the images themselves, which are the user's."""

    def attach(self, encoder):
        return [encoder.register_forward_pre_hook(self.drop_pixels)]

    def drop_pixels(self, module, inputs):
        inputs[0].mul_(self.draw(inputs[0].shape))


@fails("global_generators_unchanged", "draws from the global generator of torch: draw from `step.generator`")
class DrawsFromTorch(Balance):
    """Random weights from the global generator."""

    def weights(self, norms):
        random_weights = torch.rand(len(norms), dtype=norms.dtype)
        return len(norms) * random_weights / random_weights.sum()


@fails("global_generators_unchanged", "draws from the global generator of numpy")
class DrawsFromNumPy(Balance):
    """The same with NumPy's."""

    def weights(self, norms):
        return torch.from_numpy(len(norms) * np.random.dirichlet([1] * len(norms)))


@fails("global_generators_unchanged", "draws from the global generator of Python")
class DrawsFromPython(Balance):
    """The same with Python's."""

    def weights(self, norms):
        weights = torch.tensor([random.random() for _ in norms], dtype=norms.dtype)
        return len(norms) * weights / weights.sum()


@fails("global_generators_unchanged", "draws from the global generator of torch")
class SeedsTorch(Drop):
    """Makes itself reproducible at the cost of everything else that is drawn."""

    def __init__(self, seed: int = 0):
        torch.manual_seed(seed)
        super().__init__(seed)


@fails("same_seed_same_answer", "of two made alike: not the same, bit for bit")
class SeedsFromTheClock(Drop):
    """Masks of an unknown seed."""

    def begin(self, key, part, generator):
        generator.seed()
        super().begin(key, part, generator)


@fails("same_seed_same_answer", "of two made alike: not the same, bit for bit")
class SharesState(Lag):
    """State in the class, so every pipeline continues where the last one stopped."""

    losses = {}  # noqa: RUF012

    def __init__(self, size: int = 3):
        self.size = size

    def mix(self, step):
        return super().mix(step).roll(len(self.losses.get("domain 0", [])))

    def update(self, step):
        self.losses.update(super().update(step)["losses"])
        return {}


@fails("stochastic", "the results of two seeds are the same: draw from `step.generator`", claims="stochastic")
class DrawsNothing(Balance):
    """Claims to draw random numbers, and draws none."""


@fails("no_graph_kept", "`seen` of KeepsGraph keeps the graph")
class KeepsGraph(Turn):
    """Keeps its features, and with them the whole forward pass."""

    def transform(self, features, keys):
        self.seen = features
        return super().transform(features, keys)


@fails("no_graph_kept", r"`seen\['domain \d'\]\[0\]` of KeepsGraphInDict keeps the graph")
class KeepsGraphInDict(Turn):
    """The same, by domain and in a list."""

    def transform(self, features, keys):
        self.seen = {key.by("domain"): [features] for key in keys}
        return super().transform(features, keys)


@fails("no_graph_kept", "must return from `mix` .*graph")
class LearnsByAutograd(Balance):
    """Weights with a parameter of their own, whose graph goes into the step."""

    def mix(self, step):
        with torch.enable_grad():
            return super().mix(step) * torch.ones(1, dtype=torch.float64, requires_grad=True)
