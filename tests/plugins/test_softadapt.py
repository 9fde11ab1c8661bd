"""SoftAdapt against softmaxes written out, and the history of each key."""

import pytest
import torch

import gradhomog
from gradhomog import OptionError
from tests.plugins.from_losses import weights


def last_weights(text, sequence, **options):
    pipe = gradhomog.pipeline(text)
    for losses in sequence:
        found = weights(pipe, losses, **options)
    return found


def softmax(exponents):
    return torch.softmax(torch.as_tensor(exponents, dtype=torch.float64), dim=0)


def test_the_original_variant_is_the_softmax_of_the_last_differences():
    found = last_weights("softadapt(beta=2)", [[7.0, 1.0, 3.0], [1.0, 1.0, 1.0], [0.5, 0.9, 1.3]])
    torch.testing.assert_close(found, 3 * softmax([-1.0, -0.2, 0.6]))


def test_the_normalized_variant_depends_on_the_ratios_of_the_rates_only():
    for unit in (1.0, 1e-9, 1e9):
        sequence = [[unit, unit], [0.7 * unit, 0.9 * unit]]
        found = last_weights("softadapt(variant='normalized', beta=1)", sequence)
        torch.testing.assert_close(found, 2 * softmax([-0.75, -0.25]))


def test_the_loss_weighted_variant_multiplies_by_the_mean_losses_of_the_window():
    sequence = [[8.0, 1.0], [4.0, 1.0], [3.0, 2.0], [2.0, 2.5]]
    found = last_weights("softadapt(variant='loss_weighted', beta=0.5, order=2)", sequence)
    # The parabola through 4, 3, 2 has the derivative −1 at the end; through 1, 2, 2.5 it is 1.5 · 2.5 − 2 · 2 + 0.5.
    expected = torch.tensor([3.0, 5.5 / 3], dtype=torch.float64) * torch.tensor([-1.0, 0.25]).double().mul(0.5).exp()
    torch.testing.assert_close(found, expected / expected.mean())


def test_in_the_first_step_the_weights_are_equal_or_the_losses():
    assert weights("softadapt", [1.0, 3.0]).tolist() == [1, 1]
    assert weights("softadapt(variant='normalized')", [1.0, 3.0]).tolist() == [1, 1]
    assert weights("softadapt(variant='loss_weighted')", [1.0, 3.0]).tolist() == pytest.approx([0.5, 1.5])


def test_a_new_domain_has_the_rate_of_a_constant_loss_and_an_absent_one_keeps_its_history():
    pipe = gradhomog.pipeline("softadapt(beta=1, order=2)")
    weights(pipe, [1.0, 1.0], domains=["a", "b"])
    weights(pipe, [5.0], domains=["c"])
    found = weights(pipe, [0.5, 9.0, 1.2], domains=["a", "new", "b"])
    torch.testing.assert_close(found, 3 * softmax([-0.5, 0.0, 0.2]))


def test_two_tasks_of_one_domain_have_the_rate_of_their_mean():
    pipe = gradhomog.pipeline("softadapt(beta=1)")
    weights(pipe, [1.0, 3.0, 1.0], domains=["a", "a", "b"])
    found = weights(pipe, [3.0, 2.0, 1.0], domains=["a", "a", "b"])
    torch.testing.assert_close(found, 3 * softmax([0.5, 0.5, 0.0]))


def test_losses_of_zero_have_no_weight_in_the_loss_weighted_variant_except_if_all_are_zero():
    text = "softadapt(variant='loss_weighted')"
    assert last_weights(text, [[0.0, 1.0], [0.0, 2.0]]).tolist() == [0, 2]
    assert last_weights(text, [[0.0, 0.0], [0.0, 0.0]]).tolist() == [1, 1]


@pytest.mark.parametrize("variant", ["original", "normalized", "loss_weighted"])
@pytest.mark.parametrize("beta", [0.1, -3.0, 0.0])
def test_losses_near_the_end_of_float64_give_finite_weights(variant, beta):
    found = last_weights(f"softadapt(variant='{variant}', beta={beta})", [[1e307, 1.0, 0.0], [1e300, 1e307, 1e-300]])
    assert bool(found.isfinite().all())
    assert float(found.sum()) == pytest.approx(3)


def test_differences_of_losses_that_overflow_raise():
    sequence = [[1.7e308, 1.0] if step % 2 == 0 else [1.0, 1.0] for step in range(6)]
    with pytest.raises(
        OptionError, match=r"softadapt: differences of losses must be finite; task 0 has .*Divide the losses"
    ):
        last_weights("softadapt(order=5)", sequence)
