"""Homogenizers with side effects: writes to inputs or attributes, kept graphs, global generators."""

from __future__ import annotations

import random
import time

import numpy as np
import torch

from tests.testing.faults import fails
from tests.testing.homogenizers.good import Balance, Clip, Drop, LossRatio, Rotate


@fails("inputs_unchanged", "`rows` writes to `jacobian`")
class ZeroesData(Clip):
    """Zeroes rows through `.data`, which does not increase the version counter."""

    def scaled(self, block, scale):
        block.data[scale < 1] = 0
        return block


@fails("inputs_unchanged", "`mix` writes to `losses`")
class SortsInPlace(LossRatio):
    """Overwrites the losses by weights."""

    def mix(self, step):
        weights = super().mix(step)
        step.losses.copy_(weights)
        return weights


@fails("inputs_unchanged", "`update` writes to `feature_grads`")
class NormalizesInPlace(Rotate):
    """Normalizes feature gradients in place, which other homogenizers read too."""

    def update(self, step):
        step.feature_grads.div_(step.feature_grads.norm())
        return super().update(step)


@fails("no_stage_writes_to_self", "`mix` changes `self.last`: return new state from `update`")
class PassesByAttribute(Balance):
    """Passes weights to a later stage in an attribute."""

    def mix(self, step):
        self.last = super().mix(step)
        return self.last


@fails("no_stage_writes_to_self", "`update` changes `self.average`")
class UpdatesInPlace(Balance):
    """Writes to the old state and returns it."""

    def update(self, step):
        self.average.update(super().update(step)["average"])
        return {"average": self.average}


@fails("no_stage_writes_to_self", "`measured` changes `self.reported`")
class MarksReports(LossRatio):
    """Sets an attribute in `measured`."""

    def measured(self, step):
        self.reported = step.number
        return super().measured(step)


@fails("no_stage_writes_to_self", "`measured` returns other numbers in a second call")
class MeasuresTime(LossRatio):
    """Reports a number that differs in every call."""

    def measured(self, step):
        return {"seconds": time.perf_counter()}


@fails("inputs_unchanged", "`transform` writes to `features`")
class RotatesInPlace(Rotate):
    """Overwrites its input by the rotated features."""

    def transform(self, features, keys):
        rotated = super().transform(features, keys) + 1
        features.data.copy_(rotated.detach())
        return rotated - 1


@fails("inputs_unchanged", "`support_x` after the steps: not exactly equal")
class DropsPixels(Drop):
    """Masks the caller's images in place."""

    def attach(self, encoder):
        return [encoder.register_forward_pre_hook(self.drop_pixels)]

    def drop_pixels(self, module, inputs):
        inputs[0].mul_(self.draw(inputs[0].shape))


@fails("global_generators_unchanged", "draws from the global generator of numpy")
class DrawsFromNumPy(Balance):
    """Random weights from NumPy's global generator."""

    def weights(self, norms):
        return torch.from_numpy(len(norms) * np.random.dirichlet([1] * len(norms)))


@fails("global_generators_unchanged", "draws from the global generator of Python")
class DrawsFromPython(Balance):
    """Random weights from Python's global generator."""

    def weights(self, norms):
        weights = torch.tensor([random.random() for _ in norms], dtype=norms.dtype)
        return len(norms) * weights / weights.sum()


@fails("global_generators_unchanged", "draws from the global generator of torch")
class SeedsTorch(Drop):
    """Seeds the global generator for reproducibility."""

    def __init__(self, seed: int = 0):
        torch.manual_seed(seed)
        super().__init__(seed)


@fails("same_seed_same_results", "of two instances with the same options: not exactly equal")
class SeedsFromTheClock(Drop):
    """Masks from a random seed."""

    def begin(self, key, part, generator):
        generator.seed()
        super().begin(key, part, generator)


@fails("same_seed_same_results", "of two instances with the same options: not exactly equal")
class SharesState(LossRatio):
    """State in a class attribute, which all instances share."""

    losses = {}  # noqa: RUF012

    def __init__(self, size: int = 3):
        self.size = size

    def mix(self, step):
        return super().mix(step).roll(len(self.losses.get("domain 0", [])))

    def update(self, step):
        self.losses.update(super().update(step)["losses"])
        return {}


@fails("stochastic", "two seeds give the same results: draw from `step.generator`", claims="stochastic")
class ClaimsStochastic(Balance):
    """Claims to draw random numbers, but draws none."""


@fails("no_graph_kept", r"`seen\['domain \d'\]\[0\]` of KeepsGraphInDict keeps the graph")
class KeepsGraphInDict(Rotate):
    """Keeps features in a dict of lists."""

    def transform(self, features, keys):
        self.seen = {key.by(): [features] for key in keys}
        return super().transform(features, keys)


@fails("no_graph_kept", "must return from `mix` .*graph")
class LearnsByAutograd(Balance):
    """Weights that depend on a parameter, whose graph is returned to the step."""

    def mix(self, step):
        with torch.enable_grad():
            return super().mix(step) * torch.ones(1, dtype=torch.float64, requires_grad=True)
