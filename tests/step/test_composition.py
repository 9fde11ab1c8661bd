"""Pipelines from text, lists and objects; mixings multiply, and each stage receives the rows of the previous stage."""

import inspect
import typing

import pytest
import torch
from hypothesis import given

import gradhomog
from gradhomog import NotDifferentiableError, OptionError
from gradhomog.testing import jacobians
from tests.step.members import ROWS, C, D, Doubled, Matrix, Weights, in_dict


@given(jacobians())
def test_empty_pipeline_is_the_mean_of_the_rows(rows):
    rounding = {"rtol": 1e-12, "atol": 1e-14 * float(rows.abs().max())}
    for text in ("none", "", None, []):
        torch.testing.assert_close(gradhomog.pipeline(text).combine(rows), rows.mean(0), **rounding)
        torch.testing.assert_close(gradhomog.pipeline(text).combine({"a": rows})["a"], rows.mean(0), **rounding)


def test_mixing_matrices_compose_by_multiplication_and_the_second_receives_the_mixed_gramian():
    first, second = Matrix(*C), Matrix(*D)
    direction = gradhomog.pipeline([first, second]).combine(ROWS)
    c, d, rows = torch.tensor(C, dtype=torch.float64), torch.tensor(D, dtype=torch.float64), ROWS.double()
    torch.testing.assert_close(direction, (d @ c @ rows).mean(0).float())
    torch.testing.assert_close(first.seen, rows @ rows.T)
    torch.testing.assert_close(second.seen, c @ rows @ rows.T @ c.T)


def test_a_rows_stage_receives_the_mixed_rows_and_the_next_gramian_is_that_of_its_result():
    last = Matrix(*D)
    direction = gradhomog.pipeline([Matrix(*C), Doubled(), last]).combine(ROWS)
    mixed = 2 * torch.tensor(C, dtype=torch.float64) @ ROWS.double()
    torch.testing.assert_close(last.seen, mixed @ mixed.T)
    torch.testing.assert_close(direction, (torch.tensor(D).double() @ mixed).mean(0).float())


def test_reported_weights_are_the_weights_of_the_rows_in_the_direction():
    result = gradhomog.pipeline([Matrix(*C), Weights(1, 3)]).homogenize(ROWS)
    torch.testing.assert_close(result.direction[""], ((result.weights @ ROWS.double()) / 2).float())
    assert gradhomog.pipeline([Doubled()]).homogenize(ROWS).weights is None
    assert gradhomog.pipeline(None).homogenize(ROWS).weights.tolist() == [1.0, 1.0]


def test_a_direction_is_a_tensor_for_a_tensor_and_a_dict_by_name_otherwise():
    pipe = gradhomog.pipeline("none")
    assert pipe.combine(ROWS).shape == (3,)
    assert list(pipe.combine(in_dict(ROWS))) == ["weight", "bias"]
    assert list(pipe.combine(gradhomog.as_jacobian(ROWS))) == [""]
    assert list(pipe.homogenize(ROWS).direction) == [""]


def test_combine_does_not_change_the_rows_and_keeps_the_graph_only_with_create_graph():
    rows = ROWS.clone().requires_grad_()
    direction = gradhomog.pipeline("pcgrad").combine(rows)
    assert not direction.requires_grad
    assert torch.equal(rows, ROWS)
    assert gradhomog.pipeline("pcgrad").combine(rows, create_graph=True).requires_grad


def test_create_graph_raises_with_the_name_of_a_member_that_is_not_differentiable():
    with pytest.raises(NotDifferentiableError, match="Weights is not differentiable"):
        gradhomog.pipeline(["pcgrad", Weights(1, 1)]).combine(ROWS, create_graph=True)


def test_derivatives_of_cosines_at_a_zero_row_are_finite():
    rows = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    cosine = gradhomog.cosines(rows @ rows.T)[0, 1]
    assert torch.isfinite(torch.autograd.grad(cosine, rows)[0]).all()


def test_two_members_with_one_seed_draw_different_numbers():
    rows = torch.eye(4)
    once = gradhomog.pipeline("rlw").combine(rows) * 4
    twice = gradhomog.pipeline("rlw + rlw").combine(rows) * 4
    second = twice / once  # weights of the second draw, since those of two stages multiply
    assert not torch.allclose(second, once)
    torch.testing.assert_close(gradhomog.pipeline("rlw + rlw").combine(rows) * 4, twice)


@pytest.mark.parametrize("text", ["none", "pcgrad", 'static(weights=[1, 2.5], scale="paper") + pcgrad(order="fixed")'])
def test_the_text_of_a_pipeline_creates_an_equal_pipeline(text):
    assert str(gradhomog.pipeline(str(gradhomog.pipeline(text)))) == text


@pytest.mark.parametrize("value", [["pcgrad", ("static", {"weights": [1, 2]})], ["pcgrad + static(weights=[1, 2])"]])
def test_lists_and_text_create_the_same_pipeline(value):
    assert str(gradhomog.pipeline(value)) == "pcgrad + static(weights=[1, 2])"


def test_invalid_inputs_raise():
    with pytest.raises(OptionError, match="'none' is the empty pipeline and cannot be combined"):
        gradhomog.pipeline(["none", "pcgrad"])
    with pytest.raises(OptionError, match="`nonfinite` must be 'raise', as in the pipeline; got 'drop'"):
        gradhomog.pipeline(gradhomog.pipeline("pcgrad"), nonfinite="drop")
    with pytest.raises(OptionError, match="`nonfinite` must be 'raise' or 'drop'"):
        gradhomog.pipeline("none", nonfinite="ignore")


def test_an_object_twice_in_a_pipeline_raises():
    one = Weights(1, 1)
    with pytest.raises(OptionError, match="same homogenizer object twice"):
        gradhomog.pipeline([one, one])


def test_the_types_of_combine_have_the_options_of_its_implementation():
    for one in typing.get_overloads(gradhomog.Pipeline.combine):
        assert list(inspect.signature(one).parameters) == list(inspect.signature(gradhomog.Pipeline.combine).parameters)
    assert len(typing.get_overloads(gradhomog.Pipeline.combine)) == 2
