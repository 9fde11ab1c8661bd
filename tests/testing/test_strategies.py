"""Hypothesis strategies of the kit: requested and allowed properties of inputs, and shrinking."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from gradhomog import OptionError
from gradhomog.testing import gramians, jacobians, task_batches

ORDINARY = {"zero": False, "duplicate": False, "opposite": False}


def simplest(strategy, condition):
    """Return the simplest input with a property that hypothesis finds; the same in every run."""
    search = settings(
        max_examples=300, derandomize=True, database=None, deadline=None, phases=(Phase.generate, Phase.shrink)
    )
    return find(strategy, condition, settings=search)


def exists(strategy, condition):
    """True if one of a few hundred inputs has a property; else raise."""
    search = settings(max_examples=500, derandomize=True, database=None, deadline=None, phases=(Phase.generate,))
    find(strategy, condition, settings=search)  # raises if there is none
    return True


def pairs(rows):
    return itertools.combinations(rows, 2)


def has_zero(rows):
    return any(not row.any() for row in rows)


def has_duplicate(rows):
    return any(torch.equal(one, other) and one.any() for one, other in pairs(rows))


def has_opposite(rows):
    return any(torch.equal(one, -other) and one.any() for one, other in pairs(rows))


def cosines(rows):
    units = rows / rows.norm(dim=1, keepdim=True)
    return torch.stack([one @ other for one, other in pairs(units)])


def orders_of_magnitude(norms):
    """Return the decimal logarithm of the ratio of the largest to the smallest nonzero norm."""
    norms = norms[norms > 0]
    return float((norms.max() / norms.min()).log10()) if len(norms) else 0.0


# -- jacobians -------------------------------------------------------------------------------------------------------


@given(jacobians())
def test_rows_are_finite_float64_of_one_to_six_tasks_and_one_to_twelve_params(jacobian):
    assert jacobian.dtype == torch.float64
    assert 1 <= len(jacobian) <= 6
    assert 1 <= jacobian.shape[1] <= 12
    assert jacobian.isfinite().all()
    assert not (jacobian.signbit() & (jacobian == 0)).any()  # -0.0 would be another input with the same repr


@given(st.data(), st.integers(1, 5), st.integers(1, 5), st.integers(0, 3))
def test_numbers_of_tasks_and_params_are_as_requested(data, tasks, params, more):
    exact = data.draw(jacobians(tasks, params))
    within = data.draw(jacobians((tasks, tasks + more), (params, params + more)))
    assert exact.shape == (tasks, params)
    assert tasks <= within.shape[0] <= tasks + more
    assert params <= within.shape[1] <= params + more


@given(st.data(), st.integers(1, 4))
def test_rows_have_at_most_the_requested_rank(data, rank):
    jacobian = data.draw(jacobians(tasks=5, params=6, rank=rank))
    values = torch.linalg.svdvals(jacobian)
    assert (values[rank:] <= 1e-12 * values[0]).all()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_requested_rank_is_reached(rank):
    assert exists(
        jacobians(tasks=4, params=6, rank=rank, spread=1), lambda rows: torch.linalg.matrix_rank(rows) == rank
    )


@given(st.data(), st.sampled_from([0, 0.5, 2, 6]), st.sampled_from([None, 2]))
def test_norms_are_within_the_requested_spread(data, spread, rank):
    assert orders_of_magnitude(data.draw(jacobians(rank=rank, spread=spread)).norm(dim=1)) <= spread + 1e-9


@pytest.mark.parametrize("spread", [1, 6])
def test_the_requested_spread_is_reached(spread):
    assert exists(jacobians(spread=spread), lambda rows: orders_of_magnitude(rows.norm(dim=1)) > 0.9 * spread)


@given(st.data(), st.integers(2, 5), st.integers(0, 4))
def test_every_two_rows_have_the_requested_conflict(data, tasks, step):
    conflict = -1 + step * (1 + 1 / (tasks - 1)) / 4  # from equal rows to a simplex, whose rows have sum zero
    jacobian = data.draw(
        jacobians(tasks, (tasks, 8), conflict=conflict, zero=False, duplicate=step == 0, opposite=False)
    )
    found = cosines(jacobian)
    assert ((found + conflict).abs() < 1e-7).logical_or(found > 1 - 1e-7).all()  # a row may equal another one
    if 0 < step < 4:
        assert torch.linalg.matrix_rank(jacobian / jacobian.norm(dim=1, keepdim=True), rtol=1e-6) == tasks


@pytest.mark.parametrize(
    "arguments", [{"conflict": 0.6, "params": 6}, {"conflict": -1.1, "params": 6}, {"conflict": 0.5, "params": 2}]
)
def test_an_impossible_conflict_of_three_rows_raises(arguments):
    with pytest.raises(OptionError, match=r"`conflict` must be in \[-1, 1/\(tasks - 1\)\] with params ≥ tasks; got "):
        simplest(jacobians(tasks=3, **arguments), lambda _: True)


@pytest.mark.parametrize(
    ("name", "has"), [("zero", has_zero), ("duplicate", has_duplicate), ("opposite", has_opposite)]
)
def test_degenerate_rows_are_drawn_only_if_allowed(name, has):
    # Single numbers of equal size: two of them are equal or opposite unless the strategy prevents it.
    @given(jacobians((1, 2), 1, spread=0, **{name: False}))
    def never(jacobian):
        assert not has(jacobian)

    never()
    # Rows of eight entries are not degenerate by chance.
    assert exists(jacobians(tasks=(2, 6), params=8, **{**ORDINARY, name: True}), has)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("condition", "simple"),
    [
        (lambda rows: True, (1, 0)),
        (lambda rows: len(rows) >= 3, (3, 0)),
        (lambda rows: rows.any(), (1, 1)),
        (lambda rows: rows.max() > 2, (1, 3)),
        (lambda rows: (rows != rows.round()).any(), (1, 0.5)),
        (lambda rows: (rows @ rows.T < 0).any(), (2, 1)),
        (lambda rows: has_zero(rows) and rows.any(), (2, 1)),
    ],
    ids=["anything", "three tasks", "not zero", "more than two", "not a whole number", "conflict", "a zero row"],
)
def test_simplest_rows_are_few_short_and_consist_of_small_round_numbers(condition, simple):
    tasks, largest = simple
    jacobian = simplest(jacobians(), condition)
    assert jacobian.shape == (tasks, 1)
    assert float(jacobian.abs().max()) <= largest
    assert torch.equal(2 * jacobian, (2 * jacobian).round())  # a search may end at 2.5 although 3 is simpler


# -- Gramians --------------------------------------------------------------------------------------------------------


@given(gramians(tasks=(2, 4), params=(1, 5), spread=2))
def test_a_gramian_is_symmetric_and_positive_semidefinite(gramian):
    assert gramian.dtype == torch.float64
    assert gramian.shape in [(n, n) for n in (2, 3, 4)]
    assert gramian.allclose(gramian.T, rtol=1e-12, atol=0)
    values = torch.linalg.eigvalsh(gramian)
    assert values[0] >= -1e-12 * values[-1]


# -- batches of tasks ------------------------------------------------------------------------------------------------


@given(st.data(), st.integers(1, 3), st.integers(2, 3), st.integers(1, 2), st.integers(1, 2))
def test_a_batch_has_the_requested_shapes_and_balanced_classes(data, tasks, ways, shots, queries):
    batch = data.draw(task_batches(tasks, ways=ways, shots=shots, queries=queries, input_shape=(1, 2, 2)))
    assert batch.support_x.shape == (tasks, ways * shots, 1, 2, 2)
    assert batch.query_x.shape == (tasks, ways * queries, 1, 2, 2)
    for labels, count in ((batch.support_y, shots), (batch.query_y, queries)):
        assert [row.bincount(minlength=ways).tolist() for row in labels] == [[count] * ways] * tasks
    assert batch.domains == tuple(f"domain {index}" for index in range(tasks))


@given(task_batches((2, 3), shots=4, queries=5, outputs=2, dtype=torch.float32))
def test_a_regression_batch_has_targets_instead_of_classes(batch):
    tasks = len(batch.domains)
    assert tasks in (2, 3)
    assert (batch.support_x.shape, batch.support_y.shape) == ((tasks, 4, 6), (tasks, 4, 2))
    assert (batch.query_x.shape, batch.query_y.shape) == ((tasks, 5, 6), (tasks, 5, 2))
    assert {part.dtype for part in (batch.support_x, batch.support_y, batch.query_x, batch.query_y)} == {torch.float32}


@given(task_batches(2, ways=3, shots=2, input_shape=(400,)))
def test_queries_are_nearest_to_the_support_mean_of_their_class(batch):
    # Noise 0.5 around centres of size 1 in 400 dimensions: distances of √150 to the same class and √950 to others, ± 1.
    for task in batch:
        means = torch.stack([task.support_x[task.support_y == label].mean(dim=0) for label in range(3)])
        assert torch.equal(torch.cdist(task.query_x, means).argmin(dim=1), task.query_y)


@given(task_batches(3, input_shape=(400,), spread=2), task_batches(3, input_shape=(400,), spread=0))
def test_scales_of_inputs_are_within_the_requested_spread_and_not_zero(wide, even):
    sizes = [batch.support_x.square().mean(dim=(1, 2)).sqrt() for batch in (wide, even)]
    assert orders_of_magnitude(sizes[0]) <= 2.1  # more than 2, because the scale of random numbers varies
    assert orders_of_magnitude(sizes[1]) <= 0.1
    assert min(float(size.min()) for size in sizes) > 0


def repeats_the_first_task(batch):
    parts = [batch.support_x, batch.support_y, batch.query_x, batch.query_y]
    return any(all(torch.equal(part[0], part[task]) for part in parts) for task in range(1, len(batch.domains)))


def last_task_is_zero(batch):
    return not batch.support_x[-1].any() and not batch.query_x[-1].any()


@pytest.mark.parametrize(("name", "has"), [("zero", last_task_is_zero), ("duplicate", repeats_the_first_task)])
def test_degenerate_tasks_are_drawn_only_if_allowed(name, has):
    @given(task_batches((1, 4)))
    def never(batch):
        assert not has(batch)

    never()
    assert exists(task_batches((2, 4), **{name: True}), has)
