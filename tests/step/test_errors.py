"""Errors name the faulty member and its stage; arguments that do not match the rows raise."""

import pytest
import torch

import gradhomog
from gradhomog import DataError, OptionError, PluginRunError
from tests.step.members import ROWS, faulty


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"losses": torch.ones(3)}, OptionError, r"`losses` must have shape \[2\].*got \(3,\)"),
        ({"losses": ["a", "b"]}, OptionError, r"`losses` must contain one number per task; got \['a', 'b'\]"),
        ({"losses": torch.ones(2, dtype=torch.complex64)}, OptionError, r"`losses` must be real.*complex64"),
        ({"losses": [[1.0], [2.0]]}, OptionError, r"`losses` must have shape \[2\].*got \(2, 1\)"),
        ({"domains": ["a"]}, OptionError, r"one name for each of the 2 tasks"),
        ({"features": torch.ones(3, 1, 1), "feature_grads": torch.ones(2, 1, 1)}, DataError, r"`features` must be 2"),
        ({"features": torch.ones(2, 1, 1), "feature_grads": torch.ones(1, 1, 1)}, DataError, r"`feature_grads` must"),
        ({"targets": torch.ones(3, 1)}, DataError, r"first dimension of `targets` must be 2"),
    ],
)
def test_arguments_that_do_not_match_the_rows_raise(arguments, error, message):
    with pytest.raises(error, match=message):
        gradhomog.pipeline("none").combine(ROWS, **arguments)


def test_missing_losses_raise_with_the_name_of_the_method_that_reads_them():
    with pytest.raises(OptionError, match=r"'gradnorm' of gradhomog .* requires the losses of the tasks"):
        gradhomog.pipeline("gradnorm").combine(ROWS)


def test_losses_may_be_a_list_of_tensors_with_a_graph():
    weight = torch.tensor(2.0, requires_grad=True)
    losses = [weight * 1, weight * 2]
    assert torch.equal(gradhomog.pipeline("gradnorm").combine(ROWS, losses=losses), ROWS.mean(0))


def test_a_homogenizer_that_overrides_both_mix_and_rows_raises():
    both = faulty("mix", lambda self, step: torch.ones(2), rows=lambda self, step: step.jacobian)
    with pytest.raises(PluginRunError, match="must override `mix` or `rows`, not both"):
        gradhomog.pipeline([both])
