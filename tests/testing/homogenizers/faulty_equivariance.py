"""Faulty in what they claim of order, size, coordinates and conflict.

Whether an example shows the fault is judged by the fault's formula, written down once more for a matrix.
"""

from __future__ import annotations

import torch

from tests.testing.homogenizers.faults import fails
from tests.testing.homogenizers.good import Balance, Clip, Lag, Veto


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

    def rows(self, jacobian):
        first = jacobian[:1]
        parallel = (jacobian @ first.T) / first.square().sum() * first
        return torch.cat([first, (jacobian - parallel)[1:]])


@fails("permutation_equivariant", r"rows in the order \[.*\]: off by", order_matters(weighted_by_slot))
class HoldsBySlot(Balance):
    """Holds what it learns of a task by its place in the batch, where another task stands in the next."""

    def norms(self, evidence):
        now = evidence.norms()
        before = torch.tensor([self.usual.get(slot, float(now[slot])) for slot in range(evidence.tasks)])
        return torch.lerp(before.to(now), now, self.rate)

    def update(self, evidence):
        self.usual.update(enumerate(self.norms(evidence).tolist()))


@fails("permutation_equivariant", r"rows in the order \[.*\]: off by", order_matters(weighted_by_place))
class SortsLosses(Lag):
    """Pairs losses that it has sorted with rows that it has not."""

    def mix(self, evidence):
        weights = evidence.losses.sort().values
        return evidence.tasks * weights / weights.sum()


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
    """The mean, whatever it does to a task."""

    def mix(self, evidence):
        return torch.ones(evidence.tasks, dtype=torch.float64)


@fails("non_conflicting", "the direction conflicts with a row", conflicts(projected_once))
class ProjectsOnce(Veto):
    """Each row is projected off every row that it conflicts with, once: with three, that makes new conflicts."""

    def mix(self, evidence):
        gramian = evidence.gramian()
        squares = gramian.diagonal()
        return torch.eye(len(gramian)).double() - gramian.clamp_max(0) / torch.where(squares > 0, squares, 1)
