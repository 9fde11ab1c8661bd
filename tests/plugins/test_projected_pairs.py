"""PCGrad and GradVac against their algorithms 1 written out on the vectors, and their orders and targets."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given

import gradhomog
from gradhomog.testing import jacobians
from gradhomog_plugins._orders import task_orders
from gradhomog_plugins.gradvac import raise_cosines
from gradhomog_plugins.pcgrad import project
from tests.plugins.rows import normal


def pcgrad(rows, orders):
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
    expected = pcgrad(rows, orders)
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
    torch.testing.assert_close(found.sum(0), pcgrad(rows, orders.tolist()))


def test_a_thousand_tasks_take_little_memory_beside_the_rows():
    # For 1,024 tasks the products of all pairs in all orders take 8.6 GB; for 200, as here, 64 MB.
    gramian = torch.randn(200, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    orders = task_orders(200, "random", SimpleNamespace(generator=torch.Generator().manual_seed(1)))
    with torch.profiler.profile(profile_memory=True) as profile:
        project(gramian @ gramian.T, orders)
    assert max(event.cpu_memory_usage for event in profile.events()) < 16 * 200 * 200 * 8


def gradvac(rows, targets, beta):
    """One step of the paper's algorithm 1 on the vectors, in the tasks' order; changes `targets`, a dict by pairs."""
    changed = rows.clone()
    for i in range(len(rows)):
        for j in range(len(rows)):
            lengths = float(changed[i].norm() * rows[j].norm())
            if i == j or lengths <= 1e-6 * float(rows[i].norm() * rows[j].norm()):
                continue
            cosine, target = float(changed[i] @ rows[j]) / lengths, targets.get((i, j), 0.0)
            if cosine < target:
                turn = target * math.sqrt(max(1 - cosine**2, 0)) - cosine * math.sqrt(1 - target**2)
                changed[i] += changed[i].norm() * turn / (rows[j].norm() * math.sqrt(1 - target**2)) * rows[j]
            targets[i, j] = (1 - beta) * target + beta * cosine
    return changed.sum(0)


@given(jacobians(tasks=3, params=4))
def test_steps_in_a_fixed_order_equal_algorithm_1_on_the_vectors(jacobian):
    pipe, targets = gradhomog.pipeline("gradvac(order='fixed', beta=0.4, scale='paper')"), {}
    for rows in (jacobian, jacobian.roll(1, 0), jacobian.flip(0)):
        expected = gradvac(rows, targets, 0.4)
        torch.testing.assert_close(pipe.combine(rows), expected, rtol=1e-5, atol=1e-6 * float(rows.norm(dim=1).max()))


@pytest.mark.parametrize("tasks", [3, 8])
def test_after_equal_gradients_ordinary_gradients_have_bounded_length(tasks):
    # Seen in TorchJD 0.18: after these steps ordinary gradients become more than 1e8 times as long.
    equal, ordinary = normal(1, 50).repeat(tasks, 1), normal(tasks, 50, seed=1)
    pipe = gradhomog.pipeline("gradvac(beta=0.9)")
    for _ in range(20):
        pipe.combine(equal)
    longest = float(ordinary.norm(dim=1).max())
    assert float(pipe.combine(ordinary).norm()) < 1 / math.sqrt(1 - 0.999**2) * longest


def targets(pipe):
    """The targets other than zero, by pairs of keys."""
    [method] = pipe
    table = zip(method.keys, method.targets.tolist(), strict=True)
    found = {first: dict(zip(method.keys, row, strict=True)) for first, row in table}
    return {first: {second: value for second, value in row.items() if value} for first, row in found.items()}


def test_pairs_of_one_key_update_their_target_by_the_mean_of_their_cosines():
    pipe = gradhomog.pipeline("gradvac(beta=1)")
    rows = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]], dtype=torch.float64)
    pipe.combine(rows, domains=["a", "a", "b"])
    assert targets(pipe)["a"]["b"] == pytest.approx((0.8 + 0.96) / 2)
    assert targets(pipe)["a"]["a"] == pytest.approx(0.6)


def test_many_tasks_in_blocks_give_the_same_rows():
    rows = normal(70, 90)
    orders = torch.stack([torch.tensor([j for j in range(70) if j != i]) for i in range(70)])
    held = torch.full((70, 70), 0.1, dtype=torch.float64)
    found = raise_cosines(rows @ rows.T, orders, held, 1e9)[0] @ rows
    expected = gradvac(rows, {(i, j): 0.1 for i in range(70) for j in range(70)}, 0.5)
    torch.testing.assert_close(found.sum(0), expected)
