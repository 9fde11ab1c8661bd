"""MGDA against TorchJD where that is exact, its optimality, and its options."""

import pytest
import torch

import gradhomog
from gradhomog import OptionError


@pytest.mark.parametrize(("tasks", "params"), [(4, 20), (8, 20), (16, 20), (32, 40)])
def test_no_vector_of_the_hull_is_shorter_for_tasks_of_different_sizes(tasks, params):
    # Seen in TorchJD 0.18: 100 Frank–Wolfe steps from uniform weights return a vector 1.3 times as long for 32 tasks.
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        rows = torch.randn(tasks, params, generator=generator, dtype=torch.float64)
        rows = rows * 10 ** (2 * torch.rand(tasks, 1, generator=generator, dtype=torch.float64) - 1)
        found = gradhomog.pipeline("mgda").homogenize(rows)
        direction = found.direction[""]
        assert float(found.weights.min()) >= 0
        assert float(found.weights.mean()) == pytest.approx(1)
        assert (rows @ direction >= (1 - 1e-9) * direction @ direction).all()  # so is every vector of the hull


def test_a_zero_row_stops_the_step_unless_it_is_dropped():
    rows = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    assert gradhomog.pipeline("mgda").combine(rows).tolist() == [0.0, 0.0]
    dropped = gradhomog.pipeline("mgda(zero_rows='drop')").combine(rows)
    torch.testing.assert_close(dropped, gradhomog.pipeline("mgda").combine(rows[[0, 2]]))


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
