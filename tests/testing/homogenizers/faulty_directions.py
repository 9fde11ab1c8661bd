"""Homogenizers with faulty directions: NaN for degenerate rows, wrong dtype or scale, false claims of invariance."""

from __future__ import annotations

import torch

from tests.testing.faults import fails
from tests.testing.homogenizers.good import Balance, Clip, LossRatio, Rotate, Veto


@fails("finite_for_finite_rows", "returned NaN or infinity from `mix`")
class DividesByNorm(Balance):
    """Weights inversely proportional to the norms, which may be zero."""

    def weights(self, norms):
        inverse = 1 / norms
        return len(norms) * inverse / inverse.sum()


@fails("finite_for_finite_rows", "must return from `rows` ")
class ReturnsFloat64(Clip):
    """Computes in float64 and does not convert the result back."""

    def scaled(self, block, scale):
        return block * scale.reshape(-1, *[1] * (block.dim() - 1))


@fails("half_precision", "returned NaN or infinity from `rows`")
class SquaresInHalf(Clip):
    """Squares in the dtype of the rows; the largest number of float16 is 65504."""

    def lengths(self, jacobian):
        squares = sum(block.flatten(1).square().sum(dim=1) for block in jacobian.materialize().values())
        return torch.where(squares > 0, squares, 1).sqrt().double()


@fails("dict_rows", "a dict of rows: off by")
class ClipsEachTensor(Clip):
    """Computes norms per tensor of the network instead of over all tensors."""

    def rows(self, step):
        def clip(block):
            return self.scaled(block, self.scale(block.double().reshape(len(block), -1).norm(dim=1)))

        return step.jacobian.map(clip)


@fails("per_tensor", "the direction in the tensor `weight`: off by", claims="per_tensor")
class ClipsAllTensorsTogether(Clip):
    """Norms over all tensors, although it claims to act on each tensor separately."""


@fails("identical_rows", "2 identical rows: off by 1 .* Likely cause: the weights sum to 4 instead of 2")
class Sums(Balance):
    """Returns the sum of the rows instead of the mean."""

    def weights(self, norms):
        return len(norms) * super().weights(norms)


@fails("identical_rows", "Likely cause: an absolute epsilon")
class EpsilonInTheDenominator(Balance):
    """Weights of sum N up to an epsilon, which decides for short rows."""

    def weights(self, norms):
        return len(norms) * norms / (norms.sum() + 1e-6)


@fails("zero_rows_give_zero_direction", "zero rows give a direction that is not zero")
class RandomDirectionForZeroRows(Clip):
    """A random direction if all rows are zero."""

    def scaled(self, block, scale):
        noise = torch.randn(block.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return block if bool(block.any()) else noise.to(block.dtype)


@fails("identical_tasks", "after [23] steps on identical tasks: off by")
class DoublesFeaturesLater(Rotate):
    """Equal to the plain learner only in the first step."""

    state_names = ("angles", "steps")

    def __init__(self):
        super().__init__()
        self.steps = 0

    def transform(self, features, keys):
        return (1 + self.steps) * super().transform(features, keys)

    def update(self, step):
        return {**super().update(step), "steps": self.steps + 1}


@fails("identical_tasks", "after 1 steps on identical tasks: off by")
class SumsDicts(Clip):
    """Returns the mean of rows in one tensor, but the sum of rows in a dict."""

    def rows(self, step):
        clipped = super().rows(step)
        return clipped if clipped.names == ("",) else clipped.map(lambda block: len(block) * block)


@fails("permutation_equivariant", r"rows in the order \[.*\]: off by")
class StateBySlot(Balance):
    """Keeps state by slot, which another task may have in the next step."""

    def norms(self, step):
        norms = step.norms()
        before = torch.tensor([self.average.get(slot, float(norms[slot])) for slot in range(step.tasks)])
        return torch.lerp(before.to(norms), norms, self.rate)

    def update(self, step):
        return {"average": dict(enumerate(self.norms(step).tolist()))}


@fails("permutation_equivariant", r"rows in the order \[.*\]: off by")
class SortsLosses(LossRatio):
    """Combines sorted losses with unsorted rows."""

    def mix(self, step):
        weights = step.losses.sort().values
        return step.tasks * weights / weights.sum()


@fails("scale_equivariant", r"rows times 2\^-\d+: off by .* Likely cause: an absolute epsilon")
class TinyEpsilon(Balance):
    """Adds 1e-30 to the squared norms; rows of norm 1e-18 have squares of 1e-36."""

    def weights(self, norms):
        return super().weights((norms.square() + 1e-30).sqrt())


@fails("scale_equivariant", r"rows times 2\^-?\d+: off by")
class AlgebraInFloat32(Clip):
    """The Frobenius norm of a Gramian in float32, which contains fourth powers of the rows."""

    def scale(self, norms):
        gramian = norms.float()[:, None] * norms.float()
        size = gramian.square().sum().sqrt()
        return super().scale(norms) if 0 < float(size) < torch.inf else torch.zeros_like(norms)


@fails("loss_scale_invariant", "the direction with losses times 1e-12: off by")
class EpsilonBesideLosses(LossRatio):
    """Adds an absolute epsilon in a quotient of losses."""

    def weights(self, losses, average):
        ratios = torch.where(average > 0, losses / (average + 1e-8), 1)
        return len(losses) * ratios / ratios.sum()


@fails("loss_scale_invariant", r"the direction with losses times 1e\+06: off by")
class ClipsLosses(LossRatio):
    """Clips losses at 10."""

    def weights(self, losses, average):
        return super().weights(losses.clamp(max=10), average.clamp(max=10))


@fails("rotation_equivariant", "rotated rows: off by")
class VotesBySign(Clip):
    """A majority vote of signs per coordinate, which is not rotation-equivariant."""

    def scaled(self, block, scale):
        majority_sign = block.sign().sum(dim=0).sign()
        return torch.where(block.sign() * majority_sign < 0, 0, block)


@fails("non_conflicting", "the direction conflicts with a row")
class ProjectsOnce(Veto):
    """Projects each row once off all rows that it conflicts with, which causes new conflicts of three rows."""

    def mix(self, step):
        gramian = step.gramian()
        squares = gramian.diagonal()
        return torch.eye(len(gramian)).double() - gramian.clamp_max(0) / torch.where(squares > 0, squares, 1)
