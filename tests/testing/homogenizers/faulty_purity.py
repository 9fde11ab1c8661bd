"""Faulty in what they touch: the rows of others, the batch, the global generators."""

from __future__ import annotations

import random

import numpy as np
import torch

from tests.testing.homogenizers.faults import fails
from tests.testing.homogenizers.good import Balance, Clip, Drop, Lag, Turn


@fails("input_untouched", "changed `rows` in place in `rows`")
class ClipsInPlace(Clip):
    """Saves a copy that others needed."""

    def scaled(self, block, scale):
        return block.mul_(scale.reshape(-1, *[1] * (block.dim() - 1)))


@fails("input_untouched", "`jacobian` after the steps: not the same")
class ClipsThroughNumPy(Clip):
    """The same where PyTorch does not see it."""

    def scaled(self, block, scale):
        block.numpy()[...] *= scale.reshape(-1, *[1] * (block.dim() - 1)).numpy()
        return block


@fails("input_untouched", "the features given to `transform`: not the same")
class TurnsInPlace(Turn):
    """Writes the turned features over those it was given."""

    def transform(self, features, keys):
        turned = super().transform(features, keys) + 1
        features.data.copy_(turned.detach())
        return turned - 1


@fails("input_untouched", "`support_x` after the steps: not the same")
class DropsPixels(Drop):
    """Masks the images themselves, which are the user's."""

    def attach(self, encoder):
        return [encoder.register_forward_pre_hook(self.drop_pixels)]

    def drop_pixels(self, module, inputs):
        inputs[0].mul_(self.draw(inputs[0].shape))


@fails(
    "global_generators_untouched", "draws from the global generator of torch: draw from a torch.Generator of its own"
)
class DrawsFromTorch(Balance):
    """Random weights from the generator that everybody shares."""

    def weights(self, norms):
        random_weights = torch.rand(len(norms), dtype=norms.dtype)
        return len(norms) * random_weights / random_weights.sum()


@fails("global_generators_untouched", "draws from the global generator of numpy")
class DrawsFromNumPy(Balance):
    """The same with NumPy's."""

    def weights(self, norms):
        return torch.from_numpy(len(norms) * np.random.dirichlet([1] * len(norms)))


@fails("global_generators_untouched", "draws from the global generator of Python")
class DrawsFromPython(Balance):
    """The same with Python's."""

    def weights(self, norms):
        weights = torch.tensor([random.random() for _ in norms], dtype=norms.dtype)
        return len(norms) * weights / weights.sum()


@fails("global_generators_untouched", "draws from the global generator of torch")
class SeedsTorch(Drop):
    """Makes itself reproducible at the cost of everything else that is drawn."""

    def __init__(self, seed: int = 0):
        torch.manual_seed(seed)
        super().__init__(seed)


@fails("same_seed_same_answer", "of two made alike: not the same, bit for bit")
class SeedsItselfAnew(Drop):
    """A generator whose seed nobody knows."""

    def __init__(self, seed: int = 0):
        super().__init__(seed)
        self.generator.seed()


@fails("same_seed_same_answer", "of two made alike: not the same, bit for bit")
class SharesState(Lag):
    """What is held stands in the class, so every pipeline goes on where the last one stopped."""

    losses = {}  # noqa: RUF012

    def __init__(self, size: int = 3):
        self.size = size

    def mix(self, evidence):
        return super().mix(evidence).roll(len(self.losses.get("domain 0", [])))


@fails("stochastic", "no torch.Generator among its attributes", claims="stochastic")
class DrawsNothing(Balance):
    """Claims to draw, and has nothing to draw from."""
