"""Faulty directions: NaN of degenerate rows, wrong dtypes, a wrong scale, and claims of invariance that do not hold.

Whether an example shows the fault is decided by the fault's formula, written once more for a matrix.
"""

from __future__ import annotations

import torch

from tests.testing.homogenizers.faults import fails
from tests.testing.homogenizers.good import Balance, Clip, Lag, Turn, Veto


def some_row_is_zero(jacobian, **_):
    return (
        len(jacobian) <= 2
        and any(not any(row) for row in jacobian)
        and all(abs(x) <= 1 for row in jacobian for x in row)
    )


def gramian_is_singular(jacobian, **_):
    rows = torch.tensor(jacobian, dtype=torch.float64)
    return rows.numel() <= 4 and float(torch.linalg.det(rows @ rows.T)) == 0


@fails("finite_for_finite_rows", "returned NaN or infinity from `mix`", some_row_is_zero)
class DividesByNorm(Balance):
    """Weights inverse to the norms, of which one may be zero."""

    def weights(self, norms):
        inverse = 1 / norms
        return len(norms) * inverse / inverse.sum()


@fails("finite_for_finite_rows", "singular", gramian_is_singular)
class SolvesGramian(Veto):
    """A linear system of the Gramian, which duplicate rows make singular."""

    def mix(self, step):
        gramian = step.gramian()
        weights = torch.linalg.solve(gramian, torch.ones(len(gramian), dtype=gramian.dtype))
        return len(gramian) * weights / weights.sum()


@fails(
    "finite_for_finite_rows", "must return from `rows` ",
    lambda jacobian, dtype: jacobian == [[0.0]] and dtype == "torch.float32",
)  # fmt: skip
class ForgetsDtype(Clip):
    """Computes in float64, and forgets to go back."""

    def scaled(self, block, scale):
        return block * scale.reshape(-1, *[1] * (block.dim() - 1))


@fails("half_precision", "not implemented for 'Half'")
class LinearAlgebraInHalf(Clip):
    """Linear algebra in the dtype of the rows, which has none in half precision."""

    def lengths(self, jacobian):
        blocks = [torch.linalg.svdvals(block.flatten(1)[:, None]) for block in jacobian.materialize().values()]
        return torch.cat(blocks, dim=1).double().norm(dim=1)


@fails("half_precision", "returned NaN or infinity from `rows`")
class SquaresInHalf(Clip):
    """Squares in the dtype of the rows: more than 65504 is infinity in float16."""

    def lengths(self, jacobian):
        squares = sum(block.flatten(1).square().sum(dim=1) for block in jacobian.materialize().values())
        return torch.where(squares > 0, squares, 1).sqrt().double()


@fails("dict_rows", "raised in `rows`.*KeyError: ''")
class OneBlockOnly(Clip):
    """Written for rows in one tensor, not for those of a network."""

    def lengths(self, jacobian):
        return jacobian.materialize()[""].double().norm(dim=1)


@fails("dict_rows", "a dict of rows: off by")
class ClipsEachTensor(Clip):
    """Compares norms within each tensor of the network instead of over all of them."""

    def rows(self, step):
        def clip(block):
            return self.scaled(block, self.scale(block.double().reshape(len(block), -1).norm(dim=1)))

        return step.jacobian.map(clip)


def two_rows_of_one(jacobian, tasks, found, expected, **_):
    return jacobian == [[1.0]] and tasks == 2 and found == [2 * expected[0]]


def one_number_is_halved(jacobian, tasks, found, **_):
    return jacobian == [[1.0]] and tasks == 2 and found == [0.5]


@fails("identical_rows", "2 identical rows: off by 1 ", two_rows_of_one)
class Sums(Balance):
    """The sum of the rows, where the mean is asked for."""

    def weights(self, norms):
        return len(norms) * super().weights(norms)


@fails("identical_rows", "2 identical rows: off by 0.5 ", one_number_is_halved)
class WeightsOfSumOne(Balance):
    """Weights as if the mean were still to be taken of nothing."""

    def weights(self, norms):
        return super().weights(norms) / len(norms)


@fails("identical_rows", "1 identical rows: off by", lambda jacobian, **_: jacobian == [[1.0]])
class StartsAtZero(Clip):
    """A running mean of the rows that starts at zero, without a correction."""

    def scaled(self, block, scale):
        return 0.1 * block


@fails("no_gradient_no_direction", "zero rows give a direction")
class LeavesPlateaus(Clip):
    """A random direction where no task gives one."""

    def scaled(self, block, scale):
        noise = torch.randn(block.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return block if bool(block.any()) else noise.to(block.dtype)


@fails("no_gradient_no_direction", "NaN or infinity")
class Normalises(Clip):
    """All rows of the mean norm."""

    def scale(self, norms):
        return norms.mean() / norms


@fails("identical_tasks", "after 1 steps on identical tasks: off by")
class Doubles(Turn):
    """Features twice as large, for all tasks and from the beginning."""

    def transform(self, features, keys):
        return 2 * super().transform(features, keys)


@fails("identical_tasks", "after [23] steps on identical tasks: off by")
class DoublesLater(Turn):
    """The plain learner in the first step, and never again."""

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
    """The mean of rows in a matrix; their sum where they are a network's."""

    def rows(self, step):
        clipped = super().rows(step)
        return clipped if clipped.names == ("",) else clipped.map(lambda block: len(block) * block)


def small(jacobian):
    """The rows of an example that can be read at a glance."""
    rows = torch.tensor(jacobian, dtype=torch.float64)
    assert rows.numel() <= 30
    assert float(rows.abs().max()) <= 8
    assert torch.equal(rows, rows.round())
    return rows


def differ(one, two):
    return not torch.allclose(one, two, atol=1e-6)


def order_matters(direction):
    """Whether `direction(rows, order)` is another in the order drawn than in the one given."""

    def shows(jacobian, places, **_):
        rows = small(jacobian)
        given = list(range(len(rows)))
        return differ(direction(rows, given), direction(rows, [place for place in places if place in given]))

    return shows


def freed_of_the_first(rows, order):
    first, *others = rows[order]
    return torch.stack([first, *(row - row @ first / (first @ first) * first for row in others)]).mean(dim=0)


def weighted_by_slot(rows, order):
    norms = rows.norm(dim=1)
    weights = norms + norms[order]  # the first step is in the order given
    return weights @ rows[order] / weights.sum()


def weighted_by_place(rows, order):
    return torch.linspace(0.5, 1.5, len(rows), dtype=rows.dtype) @ rows[order]


@fails("permutation_equivariant", r"rows in the order \[.*\]: off by", order_matters(freed_of_the_first))
class FreesOfTheFirst(Clip):
    """Projects all rows off the first, which another order makes another."""

    def rows(self, step):
        rows = step.jacobian.materialize()[""]
        first = rows[:1]
        parallel = (rows @ first.T) / first.square().sum() * first
        return step.jacobian.replace({"": torch.cat([first, (rows - parallel)[1:]])})


@fails("permutation_equivariant", r"rows in the order \[.*\]: off by", order_matters(weighted_by_slot))
class HoldsBySlot(Balance):
    """Holds what it learns of a task by its place in the batch, where another task stands in the next."""

    def norms(self, step):
        now = step.norms()
        before = torch.tensor([self.usual.get(slot, float(now[slot])) for slot in range(step.tasks)])
        return torch.lerp(before.to(now), now, self.rate)

    def update(self, step):
        return {"usual": dict(enumerate(self.norms(step).tolist()))}


@fails("permutation_equivariant", r"rows in the order \[.*\]: off by", order_matters(weighted_by_place))
class SortsLosses(Lag):
    """Pairs losses that it has sorted with rows that it has not."""

    def mix(self, step):
        weights = step.losses.sort().values
        return step.tasks * weights / weights.sum()


def epsilon_counts(epsilon):
    """Whether an absolute epsilon beside the norms is more than 1e-4 of them, at the smaller of two sizes."""

    def shows(jacobian, exponent, **_):
        norms = small(jacobian).norm(dim=1) * 2.0 ** min(exponent, 0)
        return epsilon > 1e-5 * float(norms.max())

    return shows


@fails("scale_equivariant", r"rows times 2\^-\d+: off by", epsilon_counts(1e-8))
class EpsilonBesideNorms(Balance):
    """Adds 1e-8 to the norms, which is nothing for some rows and everything for others."""

    def weights(self, norms):
        shares = norms / (norms.sum() + 1e-8)
        return len(norms) * shares + (1 - shares.sum())


@fails("scale_equivariant", r"rows times 2\^-\d+: off by", epsilon_counts(1e-4))
class EpsilonBesideSquares(Balance):
    """Adds 1e-8 to the squares, as a Gramian's diagonal is often protected."""

    def weights(self, norms):
        return super().weights((norms.square() + 1e-8).sqrt())


@fails("scale_equivariant", r"rows times 2\^-\d+: off by", epsilon_counts(1e-15))
class TinyEpsilon(Balance):
    """An epsilon so small that it must be harmless; but rows of 1e-18 have squares of 1e-36."""

    def weights(self, norms):
        return super().weights((norms.square() + 1e-30).sqrt())


def fourth_powers_are_lost(jacobian, exponent, **_):
    fourth = (small(jacobian).float() * 2.0**exponent).norm() ** 4
    return not 1e-37 < float(fourth) < 1e38


@fails("scale_equivariant", r"rows times 2\^-?\d+: off by", fourth_powers_are_lost)
class AlgebraInFloat32(Clip):
    """The Frobenius norm of a Gramian in float32, whose squares are fourth powers of the rows."""

    def scale(self, norms):
        gramian = norms.float()[:, None] * norms.float()
        size = gramian.square().sum().sqrt()
        return super().scale(norms) if 0 < float(size) < torch.inf else torch.zeros_like(norms)


@fails("loss_scale_invariant", "the direction with losses times 1e-12: off by")
class EpsilonBesideLosses(Lag):
    """An absolute epsilon in a quotient of losses."""

    def weights(self, losses, usual):
        ratios = torch.where(usual > 0, losses / (usual + 1e-8), 1)
        return len(losses) * ratios / ratios.sum()


@fails("loss_scale_invariant", r"the direction with losses times 1e\+06: off by")
class ClipsLosses(Lag):
    """Losses above ten count as ten."""

    def weights(self, losses, usual):
        return super().weights(losses.clamp(max=10), usual.clamp(max=10))


def cut_to_one(jacobian, exponent, **_):
    rows, factor = small(jacobian), 2.0**exponent

    def direction(rows):
        return (rows / rows.norm(dim=1, keepdim=True).clamp(min=1)).mean(dim=0)

    return differ(direction(rows * factor) / factor, direction(rows))


@fails("scale_equivariant", r"rows times 2\^-?\d+: off by", cut_to_one)
class FixedThreshold(Clip):
    """No row longer than one."""

    def scale(self, norms):
        return (1 / torch.where(norms > 0, norms, 1)).clamp(max=1)


def vote(rows):
    elected = rows.sign().sum(dim=0).sign()
    return torch.where(rows.sign() * elected < 0, 0, rows).mean(dim=0)


def votes_turn(jacobian, rotation, **_):
    rows, turn = small(jacobian), torch.tensor(rotation, dtype=torch.float64)
    return differ(vote(rows @ turn), vote(rows) @ turn)


@fails("rotation_equivariant", "rotated rows: off by", votes_turn)
class VotesBySign(Clip):
    """A majority vote for each coordinate, claimed to depend on inner products alone."""

    def scaled(self, block, scale):
        elected = block.sign().sum(dim=0).sign()
        return torch.where(block.sign() * elected < 0, 0, block)


def projected_once(rows):
    freed = [row - sum(min(float(row @ r), 0) / float(r @ r) * r for r in rows if r.any()) for row in rows]
    return torch.stack(freed).mean(dim=0)


def conflicts(direction):
    """Whether the direction has a negative inner product with a row, and the example says so."""

    def shows(jacobian, inner_products, **_):
        rows = small(jacobian)
        return float((rows @ direction(rows)).min()) < 0 and min(inner_products) < 0

    return shows


@fails("non_conflicting", "the direction conflicts with a row", conflicts(lambda rows: rows.mean(dim=0)))
class NeverVetoes(Veto):
    """The mean, even where it harms a task."""

    def mix(self, step):
        return torch.ones(step.tasks, dtype=torch.float64)


@fails("non_conflicting", "the direction conflicts with a row", conflicts(projected_once))
class ProjectsOnce(Veto):
    """Each row is projected off every row that it conflicts with, once: with three, that makes new conflicts."""

    def mix(self, step):
        gramian = step.gramian()
        squares = gramian.diagonal()
        return torch.eye(len(gramian)).double() - gramian.clamp_max(0) / torch.where(squares > 0, squares, 1)
