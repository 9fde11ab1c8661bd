"""Correct homogenizers. Each faulty homogenizer differs from one of them by a single error."""

import math
from typing import Annotated

import torch
from annotated_types import Ge, Interval

from gradhomog import Homogenizer, HomogenizerSpec, cosines, keyed


class Balance(Homogenizer):
    """Weights in proportion to each task's running average of its gradient norm, with mean 1.

    Args:
        rate: in (0, 1], weight of the newest norm in the average, which is kept by name.
    """

    state_names = ("average",)

    def __init__(self, rate: Annotated[float, Interval(gt=0, le=1)] = 0.5):
        self.rate = rate
        self.average = {}

    def mix(self, step):
        return self.weights(self.norms(step))

    def weights(self, norms):
        total = norms.sum()
        return len(norms) * norms / total if total > 0 else torch.ones_like(norms)

    def norms(self, step):
        norms = step.norms()
        stored = keyed.read(self.average, step.names, math.nan).to(norms)
        return torch.where(stored.isnan(), norms, torch.lerp(stored.nan_to_num(), norms, self.rate))

    def update(self, step):
        return {"average": keyed.write(self.average, step.names, self.norms(step))}


class Rotate(Homogenizer):
    """A rotation of the first two features per domain that aligns feature gradients with their sum over domains."""

    state_names = ("angles",)

    def __init__(self):
        self.angles = {}

    def transform(self, features, keys):
        return features @ torch.stack([self.matrix(self.angles.get(key.by(), 0.0), features) for key in keys])

    def matrix(self, angle, features):
        matrix = torch.eye(features.shape[-1], dtype=features.dtype, device=features.device)
        matrix[:2, :2] = matrix.new_tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        return matrix

    def update(self, step):
        gradients = step.feature_grads.double().sum(dim=1)[:, :2]
        own = torch.atan2(gradients[:, 1], gradients[:, 0])
        common = torch.atan2(gradients[:, 1].sum(), gradients[:, 0].sum())
        keys = step.names
        angles = keyed.read(self.angles, keys, 0.0)
        return {"angles": keyed.write(self.angles, keys, angles + 0.1 * torch.sin(common - own))}


class Drop(Homogenizer):
    """Dropout of the encoder's features, with a rate that decreases with the mean cosine of the rows.

    Args:
        seed: seed of the masks.
    """

    state_names = ("share",)

    def __init__(self, seed: int = 0):
        self.seed = seed
        self.share, self.masks = 0.0, {}

    def attach(self, encoder):
        return [encoder.register_forward_hook(self.drop)]

    def begin(self, key, part, generator):
        self.generator, self.masks = generator, {}

    def drop(self, module, inputs, output):
        if not module.training:
            return None
        if output.shape not in self.masks:
            self.masks[output.shape] = self.draw(output.shape)
        return output * self.masks[output.shape].to(output)

    def draw(self, shape):
        return (torch.rand(shape, generator=self.generator) >= self.share) / (1 - self.share)

    def update(self, step):
        return {"share": 0.4 * float((1 - cosines(step.gramian()).mean()).clamp(0, 1))}

    def __getstate__(self):
        return {**vars(self), "masks": {}, "generator": None}  # a generator cannot be pickled


class Clip(Homogenizer):
    """Clips row norms at the median norm."""

    def rows(self, step):
        scale = self.scale(self.lengths(step.jacobian))
        return step.jacobian.map(lambda block: self.scaled(block, scale))

    def lengths(self, jacobian):
        return jacobian.norms()

    def scale(self, norms):
        return (norms.median() / torch.where(norms > 0, norms, 1)).clamp(max=1)

    def scaled(self, block, scale):
        return (block * scale.reshape(-1, *[1] * (block.dim() - 1))).to(block.dtype)


class LossRatio(Homogenizer):
    """Weights in proportion to the ratio of each task's loss to the mean of its last losses.

    Args:
        size: ≥ 1, number of last losses.
    """

    state_names = ("losses",)

    def __init__(self, size: Annotated[int, Ge(1)] = 3):
        self.size = size
        self.losses = {}

    def mix(self, step):
        average = [sum(self.losses.get(key, [])) / len(self.losses.get(key, " ")) for key in step.names]
        return self.weights(step.losses, torch.tensor(average, dtype=torch.float64))

    def weights(self, losses, average):
        ratios = torch.where(average > 0, losses / torch.where(average > 0, average, 1), 1)
        return len(losses) * ratios / ratios.sum()

    def update(self, step):
        losses = dict(self.losses)
        for key, loss in keyed.mean(step.names, step.losses).items():
            losses[key] = [*losses.get(key, []), float(loss)][-self.size :]
        return {"losses": losses}

    def measured(self, step):
        return {"largest loss": float(step.losses.max())}


def make_spec(factory, traits="", needs="", reference="new"):
    """Return the spec of a homogenizer for tests."""
    return HomogenizerSpec(factory, "for tests", reference, set(traits.split()), set(needs.split()))


EQUIVARIANT = "permutation_equivariant scale_equivariant rotation_equivariant"

GOOD = {
    Balance: make_spec(Balance, f"differentiable stateful {EQUIVARIANT}", "norms"),
    Rotate: make_spec(Rotate, f"differentiable stateful orthogonal {EQUIVARIANT}", "features"),
    Drop: make_spec(Drop, f"differentiable stateful stochastic {EQUIVARIANT}", "gramian"),
    Clip: make_spec(Clip, f"differentiable {EQUIVARIANT}", "jacobian"),
    LossRatio: make_spec(
        LossRatio, "differentiable stateful permutation_equivariant scale_equivariant loss_scale_invariant", "losses"
    ),
}
"""Specs with all traits that each homogenizer can claim."""
