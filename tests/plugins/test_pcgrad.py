"""PCGrad against TorchJD, the closed form of two tasks, and algorithm 1 written out on the rows."""

from types import SimpleNamespace

import torch
from hypothesis import given

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
