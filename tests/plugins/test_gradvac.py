"""GradVac against algorithm 1 written out on the vectors, TorchJD for two tasks, and its state."""

import math

import pytest
import torch
import torchjd.aggregation
from hypothesis import given
from hypothesis import strategies as st

import gradhomog
from gradhomog import OptionError
from gradhomog.testing import jacobians
from gradhomog_plugins.gradvac import raise_cosines


def random_rows(tasks, params, seed=0):
    return torch.randn(tasks, params, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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


def test_two_tasks_equal_torchjd_over_many_steps():
    pipe = gradhomog.pipeline("gradvac(beta=0.3, scale='paper')")
    theirs = torchjd.aggregation.GradVac(beta=0.3, eps=0.0)
    for seed in range(30):
        rows = random_rows(2, 4, seed) + 0.5
        torch.testing.assert_close(pipe.combine(rows), theirs(rows), rtol=1e-9, atol=1e-11)


@given(jacobians(tasks=(1, 6)), st.integers(0, 100))
def test_the_first_step_is_pcgrads_with_the_same_orders(rows, seed):
    expected = gradhomog.pipeline(f"pcgrad(seed={seed})").combine(rows)
    found = gradhomog.pipeline(f"gradvac(seed={seed})").combine(rows)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7 * float(rows.norm(dim=1).max()))


def test_a_corrected_row_has_the_target_as_its_cosine():
    rows = random_rows(2, 5) + torch.tensor([[2.0], [-2.0]])
    mixing, _ = raise_cosines(
        rows @ rows.T, torch.tensor([[1], [0]]), torch.full((2, 2), 0.4, dtype=torch.float64), 1e9
    )
    assert torch.cosine_similarity(mixing @ rows, rows.flip(0)).tolist() == pytest.approx([0.4, 0.4])


@pytest.mark.parametrize("tasks", [3, 8])
def test_after_equal_gradients_ordinary_gradients_have_bounded_length(tasks):
    # Seen in TorchJD 0.18: after these steps ordinary gradients become more than 1e8 times as long.
    equal, ordinary = random_rows(1, 50).repeat(tasks, 1), random_rows(tasks, 50, seed=1)
    pipe, gentle = (gradhomog.pipeline(f"gradvac(beta=0.9, ceiling={ceiling})") for ceiling in (0.999, 0.6))
    for _ in range(20):
        pipe.combine(equal)
        gentle.combine(equal)
    longest = float(ordinary.norm(dim=1).max())
    assert float(pipe.combine(ordinary).norm()) < 1 / math.sqrt(1 - 0.999**2) * longest
    assert float(gentle.combine(ordinary).norm()) <= 1.25 * longest


def test_small_gradients_give_the_same_direction_as_large_ones():
    # Seen in TorchJD 0.18: its epsilon changes the second step by 28 % at a scale of 1e-4.
    rows = torch.tensor([[1.0, 0.0], [-0.6, 0.8]], dtype=torch.float64)

    def second_step(method, scale):
        return [method(scale * rows) / scale for _ in range(2)][1]

    ours = [second_step(gradhomog.pipeline("gradvac(scale='paper')").combine, scale) for scale in (1.0, 1e-9)]
    torch.testing.assert_close(*ours, rtol=1e-9, atol=1e-12)
    theirs = second_step(torchjd.aggregation.GradVac(beta=0.01), 1.0)  # at this scale the epsilon does not matter
    torch.testing.assert_close(theirs, ours[0], rtol=1e-6, atol=1e-6)


def targets(pipe):
    """The targets other than zero, by pairs of keys."""
    [method] = pipe
    table = zip(method.keys, method.targets.tolist(), strict=True)
    found = {first: dict(zip(method.keys, row, strict=True)) for first, row in table}
    return {first: {second: value for second, value in row.items() if value} for first, row in found.items()}


def test_targets_follow_a_domain_to_another_slot_and_stay_when_it_is_absent():
    pipe = gradhomog.pipeline("gradvac(beta=0.5)")
    rows = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]], dtype=torch.float64)
    pipe.combine(rows[:2], domains=["a", "b"])
    pipe.combine(rows[[2, 1]], domains=["c", "b"])
    pipe.combine(rows[:2].flip(0), domains=["b", "a"])
    assert targets(pipe)["a"] == {"b": pytest.approx(0.45)}
    assert targets(pipe)["b"] == {"a": pytest.approx(0.45), "c": pytest.approx(0.4)}


def test_pairs_of_one_key_update_their_target_by_the_mean_of_their_cosines():
    pipe = gradhomog.pipeline("gradvac(beta=1)")
    rows = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]], dtype=torch.float64)
    pipe.combine(rows, domains=["a", "a", "b"])
    assert targets(pipe)["a"]["b"] == pytest.approx((0.8 + 0.96) / 2)
    assert targets(pipe)["a"]["a"] == pytest.approx(0.6)


def test_the_order_of_two_tasks_of_one_key_changes_no_target():
    rows = random_rows(3, 4)
    found = []
    for order in ([0, 1, 2], [1, 0, 2]):
        pipe = gradhomog.pipeline("gradvac(beta=0.5, order='fixed')")
        pipe.combine(rows[order].abs(), domains=["a", "a", "b"])
        found.append(pipe.members[0].homogenizer.targets)
    torch.testing.assert_close(*found)


def test_many_tasks_in_blocks_give_the_same_rows():
    rows = random_rows(70, 90)
    orders = torch.stack([torch.tensor([j for j in range(70) if j != i]) for i in range(70)])
    held = torch.full((70, 70), 0.1, dtype=torch.float64)
    found = raise_cosines(rows @ rows.T, orders, held, 1e9)[0] @ rows
    expected = algorithm_1(rows, {(i, j): 0.1 for i in range(70) for j in range(70)}, 0.5)
    torch.testing.assert_close(found.sum(0), expected)


def test_a_zero_row_changes_no_target_and_no_other_row():
    pipe = gradhomog.pipeline("gradvac(beta=0.5)")
    for _ in range(3):
        pipe.combine(torch.tensor([[1.0, 0.0], [0.6, 0.8]]))
    before = targets(pipe)
    rows = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    found = pipe.homogenize(rows)
    torch.testing.assert_close(found.direction[""], rows.mean(0))
    assert targets(pipe) == before


def test_reading_the_rows_after_a_step_changes_no_target():
    pipe = gradhomog.pipeline("gradvac")
    pipe.combine(random_rows(3, 5))
    before = targets(pipe)
    pipe.rows_after(random_rows(3, 5, seed=1), torch.ones(3)).gramian()
    assert targets(pipe) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("beta=1.5", "`beta` must be"),
        ("ceiling=1", "`ceiling` must be"),
    ],
)
def test_options_out_of_range_raise(options, message):
    with pytest.raises(OptionError, match=message):
        gradhomog.pipeline(f"gradvac({options})").combine(torch.eye(2))


ORDERS = torch.tensor([[2, 1, 3], [0, 3, 2], [3, 0, 1], [1, 2, 0]])
TARGETS = torch.linspace(-0.2, 0.8, 16, dtype=torch.float64).reshape(4, 4)


@pytest.mark.parametrize("longest", [1e9, 1.3])
def test_the_rows_are_twice_differentiable(longest):
    rows = random_rows(4, 4)

    def changed(jacobian):
        return raise_cosines(jacobian @ jacobian.T, ORDERS, TARGETS, longest)[0] @ jacobian

    assert torch.autograd.gradcheck(changed, (rows - 0.8 * rows.mean(0)).requires_grad_())
    assert torch.autograd.gradgradcheck(changed, (rows - 0.8 * rows.mean(0)).requires_grad_())


def test_derivatives_are_finite_beside_zero_equal_and_opposite_rows():
    rows = torch.tensor([[1.0, 2.0], [0.0, 0.0], [1.0, 2.0], [-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    changed = raise_cosines(rows @ rows.T, ORDERS, TARGETS, 22.0)[0] @ rows
    [slope] = torch.autograd.grad(changed.square().sum(), rows, create_graph=True)
    [curvature] = torch.autograd.grad(slope.sum(), rows)
    assert slope.isfinite().all()
    assert curvature.isfinite().all()
