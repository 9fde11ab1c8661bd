"""GradVac against algorithm 1 written out on the vectors, TorchJD for two tasks, and its state."""

import math

import pytest
import torch
from hypothesis import given

import gradhomog
from gradhomog.testing import jacobians
from gradhomog_plugins.gradvac import raise_cosines
from tests.plugins.rows import normal


def algorithm_1(rows, targets, beta):
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
        expected = algorithm_1(rows, targets, 0.4)
        torch.testing.assert_close(pipe.combine(rows), expected, rtol=1e-5, atol=1e-6 * float(rows.norm(dim=1).max()))


@pytest.mark.parametrize("tasks", [3, 8])
def test_after_equal_gradients_ordinary_gradients_have_bounded_length(tasks):
    # Seen in TorchJD 0.18: after these steps ordinary gradients become more than 1e8 times as long.
    equal, ordinary = normal(1, 50).repeat(tasks, 1), normal(tasks, 50, seed=1)
    pipe, gentle = (gradhomog.pipeline(f"gradvac(beta=0.9, ceiling={ceiling})") for ceiling in (0.999, 0.6))
    for _ in range(20):
        pipe.combine(equal)
        gentle.combine(equal)
    longest = float(ordinary.norm(dim=1).max())
    assert float(pipe.combine(ordinary).norm()) < 1 / math.sqrt(1 - 0.999**2) * longest
    assert float(gentle.combine(ordinary).norm()) <= 1.25 * longest


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
    expected = algorithm_1(rows, {(i, j): 0.1 for i in range(70) for j in range(70)}, 0.5)
    torch.testing.assert_close(found.sum(0), expected)
