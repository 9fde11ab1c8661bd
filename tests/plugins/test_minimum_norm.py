"""MGDA, CAGrad and SDMGrad: optimality, SciPy's optima, TorchJD's descent, their scales, and zero rows."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torchjd.aggregation import SDMGradWeighting

import gradhomog
from gradhomog import OptionError
from tests.plugins.rows import normal


def test_a_zero_row_stops_the_step():
    rows = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    assert gradhomog.pipeline("mgda").combine(rows).tolist() == [0.0, 0.0]


def test_normalizing_solves_for_the_normalized_rows_and_weights_the_given_rows():
    rows = torch.tensor([[10.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert gradhomog.pipeline("mgda(normalize='l2')").homogenize(rows).weights.tolist() == pytest.approx([1, 1])
    by_loss = gradhomog.pipeline("mgda(normalize='loss')").homogenize(rows, torch.tensor([10.0, 1.0]))
    assert by_loss.weights.tolist() == pytest.approx([1, 1])
    by_both = gradhomog.pipeline("mgda(normalize='loss+')").homogenize(rows, torch.tensor([10.0, 1.0]))
    assert by_both.weights.tolist() == pytest.approx([200 / 101, 2 / 101])  # rows of norms 1/10 and 1


FEATURE_GRADS = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def test_on_features_the_weights_are_those_of_the_feature_gradients():
    rows = torch.randn(3, 9, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    pipe = gradhomog.pipeline("mgda(on='features')")
    found = pipe.homogenize(rows, features=[FEATURE_GRADS], feature_grads=[FEATURE_GRADS]).weights
    flat = FEATURE_GRADS.reshape(3, 8)
    torch.testing.assert_close(found, 3 * gradhomog.minimum_norm_weights(flat @ flat.T).weights)


def test_orthogonal_rows_have_weights_proportional_to_their_squared_losses():
    # α_i ∝ 1/‖g_i/L_i‖², in closed form.
    losses = torch.tensor([1e-90, 1.0], dtype=torch.float64)
    found = gradhomog.pipeline("mgda(normalize='loss')").homogenize(torch.eye(2).double(), losses)
    torch.testing.assert_close(found.weights, 2 * losses.square() / losses.square().sum(), rtol=1e-9, atol=0)


@pytest.mark.parametrize(("losses", "task"), [([1e-300, 1.0], 1), ([1e300, 1.0], 0), ([1e308, 5e-324], 0)])
def test_losses_whose_ratio_cannot_be_squared_raise_with_the_name(losses, task):
    with pytest.raises(OptionError, match=rf"more than 1e\+100 times the smallest, .*; task {task} has"):
        gradhomog.pipeline("mgda(normalize='loss')").combine(torch.eye(2), losses=losses)


CONFLICTING = torch.tensor([[3.0, 0.0, 1.0], [-1.0, 1.0, 0.5], [0.0, 2.0, -1.0]], dtype=torch.float64)


def test_the_mean_scale_divides_by_one_plus_the_radius():
    paper = gradhomog.pipeline("cagrad(c=0.5, scale='paper')").combine(CONFLICTING)
    torch.testing.assert_close(gradhomog.pipeline("cagrad(c=0.5)").combine(CONFLICTING), paper / 1.5)


def test_beside_a_zero_row_the_step_is_the_projection():
    rows = torch.cat([CONFLICTING[:2], torch.zeros(1, 3, dtype=torch.float64)])
    kept = gradhomog.pipeline("cagrad(c=0.9, scale='paper')").combine(rows)
    torch.testing.assert_close(kept, gradhomog.pipeline("dualproj").combine(rows))


def combine(rows, text="sdmgrad", steps=1, **options):
    pipe = gradhomog.pipeline(text)
    for _ in range(steps):
        direction = pipe.combine(rows, **options)
    return direction


def shortest(rows, regularization):
    """The vector of the hull of g_i + λ g_0 with least norm by SciPy, divided by 1 + λ."""
    shifted = rows.numpy() + regularization * rows.numpy().mean(0)
    found = minimize(
        lambda w: 0.5 * (w @ shifted) @ (w @ shifted), np.full(len(rows), 1 / len(rows)),
        jac=lambda w: shifted @ (w @ shifted), bounds=[(0, 1)] * len(rows), method="SLSQP",
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like}, options={"ftol": 1e-15},
    )  # fmt: skip
    return torch.from_numpy(found.x @ shifted) / (1 + regularization)


# -- exact --


@pytest.mark.parametrize("regularization", [0.0, 0.3, 2.0])
@pytest.mark.parametrize(("tasks", "params"), [(2, 3), (4, 3), (6, 20)])
def test_the_direction_is_the_optimum_that_scipy_finds(tasks, params, regularization):
    rows = normal(tasks, params, seed=tasks)
    found = combine(rows, f"sdmgrad(regularization={regularization})")
    torch.testing.assert_close(found, shortest(rows, regularization), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("solver", ["exact", "sgd"])
def test_beside_a_zero_row_a_share_of_the_mean_remains(solver):
    row = normal(1, 4)
    text = f"sdmgrad(solver='{solver}', lr=0.5)"
    beside_zero = combine(torch.cat([row, 0 * row]), text, 50)  # all weight on the zero row: d = λ g_0 / (1 + λ)
    torch.testing.assert_close(beside_zero, 0.3 / 1.3 * row[0] / 2)


# -- sgd --


@pytest.mark.parametrize(("lr", "momentum", "iterations"), [(10.0, 0.5, 20), (0.5, 0.5, 20), (1.0, 0.0, 3)])
@pytest.mark.parametrize("tasks", [2, 5])
def test_the_descent_is_torchjds_on_three_times_the_same_batch(tasks, lr, momentum, iterations):
    theirs = SDMGradWeighting(lr=lr, momentum=momentum, n_iter=iterations, lambda_=0.6)
    pipe = gradhomog.pipeline(
        f"sdmgrad(solver='sgd', regularization=0.6, lr={lr}, momentum={momentum}, iterations={iterations})"
    )
    for step in range(4):  # both start from their last weights
        rows = 10 * normal(tasks, 30, seed=step)
        torch.testing.assert_close(pipe.combine(rows), theirs(rows @ rows.T) @ rows, rtol=1e-5, atol=1e-6)


def test_a_batch_of_tasks_without_weight_starts_from_equal_weights():
    pipe = gradhomog.pipeline("sdmgrad(solver='sgd')")
    (method,) = pipe
    method.weights = {"a": 0.0, "b": 0.0, "c": 1.0}
    direction = pipe.combine(torch.eye(2), domains=["a", "b"])
    torch.testing.assert_close(direction, torch.tensor([0.5, 0.5]))
