"""Homogenizers with nothing wrong: each faulty one differs from one of these by a single error."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from gradhomog import Homogenizer, HomogenizerSpec, OptionError, cosines


class Balance(Homogenizer):
    """Weights in proportion to each task's usual gradient norm, of mean one.

    Args:
        rate: in (0, 1], share of the newest norm in the usual one, which is held by domain.
    """

    carried = ("usual",)

    def __init__(self, rate: float = 0.5):
        if not 0 < rate <= 1:
            raise OptionError(f"`rate` must be in (0, 1]; got {rate!r}.")
        self.rate = rate
        self.usual = {}

    def mix(self, evidence):
        return self.weights(self.norms(evidence))

    def weights(self, norms):
        total = norms.sum()
        return len(norms) * norms / total if total > 0 else torch.ones_like(norms)

    def norms(self, evidence):
        now = evidence.norms()
        before = [self.usual.get(key) for key in evidence.by("domain")]
        known = torch.tensor(
            [math.nan if norm is None else norm for norm in before], dtype=now.dtype, device=now.device
        )
        return torch.where(known.isnan(), now, torch.lerp(known.nan_to_num(), now, self.rate))

    def update(self, evidence):
        self.usual.update(zip(evidence.by("domain"), self.norms(evidence).tolist(), strict=True))


class Turn(Homogenizer):
    """A rotation of the first two features for each domain, towards where all feature gradients point together."""

    carried = ("angles",)

    def __init__(self):
        self.angles = {}

    def transform(self, features, keys):
        matrices = [self.matrix(self.angles.get(key.by("domain"), 0.0), features) for key in keys]
        return features @ torch.stack(matrices)

    def matrix(self, angle, features):
        matrix = torch.eye(features.shape[-1], dtype=features.dtype, device=features.device)
        matrix[:2, :2] = matrix.new_tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        return matrix

    def update(self, evidence):
        pulls = evidence.feature_cotangents.double().sum(dim=1)[:, :2]
        heading = torch.atan2(pulls[:, 1], pulls[:, 0])
        common = torch.atan2(pulls[:, 1].sum(), pulls[:, 0].sum())
        for key, step in zip(evidence.by("domain"), torch.sin(common - heading).tolist(), strict=True):
            self.angles[key] = self.angles.get(key, 0.0) + 0.1 * step


class Drop(Homogenizer):
    """Dropout of the encoder's features, the more the farther the tasks' gradients are from agreement.

    Args:
        seed: of the masks.
    """

    carried = ("generator", "share")

    def __init__(self, seed: int = 0):
        self.generator = torch.Generator().manual_seed(seed)
        self.share, self.masks = 0.0, {}

    def attach(self, encoder):
        return [encoder.register_forward_hook(self.drop)]

    def begin(self, key, part):
        self.masks = {}

    def drop(self, module, inputs, output):
        if not module.training:
            return None
        if output.shape not in self.masks:
            self.masks[output.shape] = self.draw(output.shape)
        return output * self.masks[output.shape].to(output)

    def draw(self, shape):
        return (torch.rand(shape, generator=self.generator) >= self.share) / (1 - self.share)

    def update(self, evidence):
        self.share = 0.4 * float((1 - cosines(evidence.gramian()).mean()).clamp(0, 1))
        self.masks = {}


class Clip(Homogenizer):
    """No row longer than the middle one."""

    def rows(self, jacobian):
        blocks = jacobian if isinstance(jacobian, Mapping) else {"": jacobian}
        scale = self.scale(self.lengths(blocks))
        clipped = {name: self.scaled(block, scale) for name, block in blocks.items()}
        return clipped if isinstance(jacobian, Mapping) else clipped[""]

    def lengths(self, blocks):
        squares = sum(block.double().reshape(len(block), -1).square().sum(dim=1) for block in blocks.values())
        return torch.where(squares > 0, squares, 1).sqrt() * (squares > 0)

    def scale(self, norms):
        return (norms.median() / torch.where(norms > 0, norms, 1)).clamp(max=1)

    def scaled(self, block, scale):
        return (block * scale.reshape(-1, *[1] * (block.dim() - 1))).to(block.dtype)


class Veto(Homogenizer):
    """No step at all where the mean would set a task back."""

    def mix(self, evidence):
        gramian = evidence.gramian()
        inner, norms = gramian.sum(dim=1), gramian.diagonal().sqrt()
        harmed = inner < -1e-10 * norms * norms.sum()
        return torch.zeros_like(norms) if bool(harmed.any()) else torch.ones_like(norms)


class Lag(Homogenizer):
    """Weights in proportion to how each task's loss compares with its last few.

    Args:
        size: ≥ 1, how many.
    """

    carried = ("losses",)

    def __init__(self, size: int = 3):
        if size < 1:
            raise OptionError(f"`size` must be at least 1; got {size!r}.")
        self.size = size
        self.losses = {}

    def mix(self, evidence):
        usual = [sum(self.losses.get(key, [])) / len(self.losses.get(key, " ")) for key in evidence.by("domain")]
        usual = torch.tensor(usual, dtype=torch.float64)
        ratios = torch.where(usual > 0, evidence.losses / torch.where(usual > 0, usual, 1), 1)
        return evidence.tasks * ratios / ratios.sum()

    def update(self, evidence):
        for key, loss in zip(evidence.by("domain"), evidence.losses.tolist(), strict=True):
            self.losses[key] = [*self.losses.get(key, []), loss][-self.size :]


class Whole(Balance, Turn, Drop, Clip):
    """All five stages: weights by usual norms, rotated features, dropout by disagreement, clipped rows.

    Args:
        rate: in (0, 1], share of the newest norm in the usual one, which is held by domain.
        seed: of the masks.
    """

    carried = (*Balance.carried, *Turn.carried, *Drop.carried)

    def __init__(self, rate: float = 0.5, seed: int = 0):
        Balance.__init__(self, rate)
        Turn.__init__(self)
        Drop.__init__(self, seed)

    def update(self, evidence):
        for part in (Balance, Turn, Drop):
            part.update(self, evidence)

    def measured(self):
        return {"share": self.share, "angles": list(self.angles.values())}


def described(factory, traits="", needs="", reference="new"):
    """The spec of a homogenizer, told in as few words as a test has."""
    return HomogenizerSpec(factory, "for tests", reference, set(traits.split()), set(needs.split()))


EQUIVARIANT = "permutation_equivariant scale_equivariant rotation_equivariant"

GOOD = {
    Balance: described(Balance, f"differentiable stateful {EQUIVARIANT}", "norms"),
    Turn: described(Turn, f"differentiable stateful orthogonal {EQUIVARIANT}", "features"),
    Drop: described(Drop, f"differentiable stateful stochastic {EQUIVARIANT}", "gramian"),
    Clip: described(Clip, f"differentiable {EQUIVARIANT}"),
    Lag: described(Lag, "differentiable stateful permutation_equivariant scale_equivariant", "losses"),
    Veto: described(Veto, f"differentiable non_conflicting {EQUIVARIANT}", "gramian"),
    Whole: described(Whole, f"differentiable stateful stochastic orthogonal {EQUIVARIANT}", "norms gramian features"),
}
"""Each with all that it can claim."""
