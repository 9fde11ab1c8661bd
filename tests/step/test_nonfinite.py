"""NaN and infinity: errors name task, domain and parameter, or the task is dropped; state does not change."""

import copy

import pytest
import torch

import gradhomog
from gradhomog import NonfiniteError, PluginRunError
from tests.step.members import ROWS, Counter, faulty, in_dict


@pytest.mark.parametrize("text", ["none", "pcgrad", "gradnorm", "static(weights=[1, 2, 3])", "mgda"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_nonfinite_row_raises_with_task_domain_and_parameter_and_changes_no_state(text, value):
    pipe = gradhomog.pipeline(text)
    before = copy.deepcopy(pipe.state_dict())
    rows = in_dict(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, value], [0.0, 0.0, 1.0]]))
    with pytest.raises(NonfiniteError, match=r"task 1 of domain b is not finite: its gradient .* w\.r\.t\. bias"):
        pipe.combine(rows, losses=[1.0, 1.0, 1.0], domains=["a", "b", "c"])
    assert str(pipe.state_dict()) == str(before)


def test_a_nonfinite_row_without_parameter_names_raises_with_the_way_to_drop_it():
    message = r"task 1 is not finite: its row contains NaN or infinity\..*gradhomog\.pipeline\(\.\.\., nonfinite="
    with pytest.raises(NonfiniteError, match=message):
        gradhomog.pipeline("none").combine(torch.tensor([[1.0, 0.0], [0.0, float("nan")]]))


def test_a_nonfinite_loss_raises():
    with pytest.raises(NonfiniteError, match="task 0 is not finite: its loss is nan"):
        gradhomog.pipeline("none").combine(ROWS, losses=[float("nan"), 1.0])


@pytest.mark.parametrize("text", ["none", "pcgrad(order='fixed')", "mgda", "static(weights=[1, 9, 1])"])
def test_dropping_a_nonfinite_task_gives_the_step_of_the_others(text):
    rows = torch.tensor([[1.0, 2.0, 0.0], [float("nan"), 0.0, 0.0], [0.0, -1.0, 3.0]])
    result = gradhomog.pipeline(text, nonfinite="drop").homogenize(rows, torch.ones(3))
    assert result.tasks == (0, 2)
    others = gradhomog.pipeline(text.replace("1, 9, 1", "1, 1")).combine(rows[[0, 2]])
    assert torch.equal(result.direction[""], others)


def test_dropping_a_task_keeps_the_states_of_the_others_apart():
    pipe = gradhomog.pipeline("gradnorm(lr=0.1, alpha=0)", nonfinite="drop")
    rows = torch.tensor([[float("nan"), 0.0], [0.0, 1.0], [5.0, 0.0]])
    pipe.combine(rows, losses=[1.0, 1.0, 1.0])
    state = pipe.state_dict()["0:gradnorm"]
    assert set(state["log_weights"]) == {"1", "2"}
    assert state["log_weights"]["1"] > state["log_weights"]["2"]


def test_dropping_every_task_raises():
    with pytest.raises(NonfiniteError):
        gradhomog.pipeline("none", nonfinite="drop").combine(torch.full((2, 2), float("nan")))


@pytest.mark.parametrize("nonfinite", ["raise", "drop"])
@pytest.mark.parametrize("needs", [set(), {"norms"}])
def test_weights_that_make_the_direction_overflow_raise_and_no_state_changes(nonfinite, needs):
    class Heavy(Counter):
        def mix(self, step):
            return torch.full((step.tasks,), 1e40, dtype=torch.float64)

    heavy = Heavy()
    heavy.needs = needs
    pipe = gradhomog.pipeline([heavy], nonfinite=nonfinite)
    with pytest.raises(
        PluginRunError, match=r"Heavy.*weights of up to 1\.0e\+40, so that the direction overflows in torch\.float32"
    ):
        pipe.combine(torch.eye(3))
    assert heavy.count == 0
    assert torch.isfinite(pipe.combine(torch.eye(3, dtype=torch.float64))).all()


@pytest.mark.parametrize(
    ("rows", "weights"),
    [(torch.full((2, 3), 100.0, dtype=torch.float16), [1e6]), (torch.full((2, 3), 1e18), [1e9, 1e9, 1e9])],
    ids=["float16", "several that multiply"],
)
def test_overflow_of_the_direction_raises_for_every_dtype_and_for_products_of_weights(rows, weights):
    def weighting(weight):
        return faulty("mix", lambda self, step: torch.full((step.tasks,), weight, dtype=torch.float64))

    with pytest.raises(PluginRunError, match=r"so that the direction overflows in torch\.float"):
        gradhomog.pipeline([weighting(weight) for weight in weights]).combine(rows)


@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float32])
def test_weights_of_any_real_dtype_are_accepted(dtype):
    ones = faulty("mix", lambda self, step: torch.ones(step.tasks, dtype=dtype))
    torch.testing.assert_close(gradhomog.pipeline([ones]).combine(torch.eye(2)), torch.tensor([0.5, 0.5]))


def test_a_wrapped_method_draws_the_same_numbers_as_alone_when_a_task_is_dropped():
    rows, losses = torch.eye(4), torch.ones(4)
    rows[2, 1] = torch.nan
    wrapped = gradhomog.pipeline("cr_mogm(method='rlw', alpha=0)", nonfinite="drop")
    bare = gradhomog.pipeline("rlw", nonfinite="drop")
    torch.testing.assert_close(wrapped.combine(rows, losses), bare.combine(rows, losses))


@pytest.mark.parametrize("nonfinite", ["raise", "drop"])
@pytest.mark.parametrize("text", ["pcgrad", "mgda", "imtl_g"])
def test_rows_whose_inner_products_overflow_are_named_with_the_largest_entry(text, nonfinite):
    pipe = gradhomog.pipeline(text, nonfinite=nonfinite)
    with pytest.raises(
        NonfiniteError, match=r"rows are too large.* products overflow: the largest entry .* is 3\.0e\+300"
    ):
        pipe.combine(torch.tensor([[1e300, 2e300], [3e300, -1e300]], dtype=torch.float64))


def test_the_mean_of_the_largest_finite_rows_does_not_overflow():
    rows = torch.full((2, 3), torch.finfo(torch.float32).max)
    found = gradhomog.pipeline("none").combine(rows)
    assert torch.isfinite(found).all()
    with pytest.raises(NonfiniteError, match="task 0 is not finite"):
        gradhomog.pipeline("none").combine(torch.full((1, 2), torch.inf))
