"""PCGrad against TorchJD, the closed form of two tasks, and algorithm 1 written out on the rows."""

from types import SimpleNamespace

import pytest
import torch
import torchjd.aggregation
from hypothesis import given
from hypothesis import strategies as st

import gradhomog
from gradhomog.testing import jacobians
from gradhomog_plugins._orders import task_orders
from gradhomog_plugins.pcgrad import project


def algorithm_1(rows, orders):
    """The paper's algorithm 1 on the vectors."""
    projected = rows.clone()
    for i, order in enumerate(orders):
        for j in order:
            inner = projected[i] @ rows[j]
            if inner < 0:
                projected[i] = projected[i] - inner / (rows[j] @ rows[j]) * rows[j]
    return projected.sum(0)


@given(jacobians(tasks=(1, 6)))
def test_fixed_order_equals_algorithm_1_on_the_vectors(rows):
    orders = [[j for j in range(len(rows)) if j != i] for i in range(len(rows))]
    expected = algorithm_1(rows, orders)
    found = gradhomog.pipeline("pcgrad(order='fixed', scale='paper')").combine(rows)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9 * float(rows.norm(dim=1).max()))


@given(jacobians(tasks=(2, 2)))
def test_two_tasks_equal_torchjd_which_has_no_choice_of_order(rows):
    expected = torchjd.aggregation.PCGrad()(rows)
    found = gradhomog.pipeline("pcgrad(scale='paper')").combine(rows)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9 * float(rows.norm(dim=1).max()))


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [3, 5])
def test_random_orders_give_the_same_directions_as_torchjd(tasks):
    rows = torch.randn(tasks, 4, generator=torch.Generator().manual_seed(tasks), dtype=torch.float64)
    rows = rows - 0.8 * rows.mean(0)
    pipe = gradhomog.pipeline("pcgrad(scale='paper')")
    ours = torch.stack([pipe.combine(rows) for _ in range(400)])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = torch.stack([torchjd.aggregation.PCGrad()(rows) for _ in range(400)])
    assert float(ours.std(dim=0).max()) > 1e-3  # the order matters here
    error = (ours.var(dim=0) / 400 + theirs.var(dim=0) / 400).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 5 * error + 1e-9).all()


@given(jacobians(tasks=(2, 2)))
def test_two_tasks_conflict_with_neither(rows):
    direction = gradhomog.pipeline("pcgrad").combine(rows)
    norms = rows.norm(dim=1)
    assert (rows @ direction >= -1e-9 * norms * norms.max()).all()


@given(jacobians(tasks=(2, 6)), st.integers(0, 100))
def test_rows_without_conflict_are_averaged_in_every_order(rows, seed):
    agreeing = rows.abs()
    found = gradhomog.pipeline(f"pcgrad(seed={seed})").combine(agreeing)
    torch.testing.assert_close(found, agreeing.mean(0))


def test_every_order_of_the_others_is_drawn_equally_often():
    generator, counts = torch.Generator().manual_seed(0), {}
    for _ in range(3000):
        orders = task_orders(4, "random", SimpleNamespace(generator=generator))
        assert [sorted([i, *row]) for i, row in enumerate(orders.tolist())] == [[0, 1, 2, 3]] * 4
        key = tuple(orders[1].tolist())
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 6
    assert all(abs(count - 500) < 5 * (3000 * 5 / 36) ** 0.5 for count in counts.values())


def test_many_tasks_are_projected_in_blocks_as_in_algorithm_1():
    rows = torch.randn(70, 90, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    orders = task_orders(70, "random", SimpleNamespace(generator=torch.Generator().manual_seed(1)))
    found = project(rows @ rows.T, orders) @ rows
    torch.testing.assert_close(found.sum(0), algorithm_1(rows, orders.tolist()))


def test_a_thousand_tasks_take_little_memory_beside_the_rows():
    # For 1,024 tasks the products of all pairs in all orders take 8.6 GB; for 200, as here, 64 MB.
    gramian = torch.randn(200, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    orders = task_orders(200, "random", SimpleNamespace(generator=torch.Generator().manual_seed(1)))
    with torch.profiler.profile(profile_memory=True) as profile:
        project(gramian @ gramian.T, orders)
    assert max(event.cpu_memory_usage for event in profile.events()) < 16 * 200 * 200 * 8
