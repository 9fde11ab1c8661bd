"""MAML and FOMAML: rows against a hand-written loop, `higher` and a closed form; parameters, statistics, steps."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn

from gradhomog import DataError, NonfiniteError, OptionError, Task, TaskBatch
from gradhomog_adapters.maml import MAML
from tests.adapters.checks import INNER, networks, reference_row, tasks


def assert_rows_are_those_of_the_reference(learner, inner, steps, first_order=False):
    batch, both = tasks(), nn.Sequential(OrderedDict(encoder=learner.encoder, head=learner.head))
    rows = learner.rows(batch)
    for slot, task in enumerate(batch):
        tensors = task.support_x, task.support_y, task.query_x, task.query_y
        expected = reference_row(both, inner, tensors, steps, first_order)
        assert set(rows.jacobian) == set(expected)
        for name, gradient in expected.items():
            torch.testing.assert_close(rows.jacobian[name][slot], gradient, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("norm", [False, True])
def test_rows_equal_a_hand_written_loop_in_float64(inner, first_order, norm):
    # TorchOpt's RMSProp divides by the zero gradient of a bias before batch normalization: NaN also in the reference.
    encoder, head = networks(norm and inner != "rmsprop")
    learner = MAML(encoder, head, inner=INNER[inner], inner_steps=3, first_order=first_order)
    assert_rows_are_those_of_the_reference(learner, INNER[inner], 3, first_order)


@pytest.mark.parametrize("first_order", [False, True])
def test_the_head_has_rows_if_the_encoder_is_frozen_or_has_no_parameters(first_order):
    for encoder, head in (networks(), (nn.Identity(), nn.Linear(3, 3).double())):
        rows = MAML(encoder.requires_grad_(False), head, inner_lr=0.1, first_order=first_order).rows(tasks())
        assert set(rows.jacobian) == {"head.weight", "head.bias"}
        assert float(rows.jacobian["head.weight"].abs().max()) > 0
        assert float(rows.feature_grads[0].abs().max()) > 0


@pytest.mark.parametrize("shared_module", [False, True])
def test_tied_parameters_have_one_row_that_is_the_sum_over_their_uses(shared_module):
    # Regression test: the head kept the parameter of a module that the encoder shares from before the inner loop.
    torch.manual_seed(0)
    encoder, head = nn.Linear(3, 3, bias=shared_module).double(), nn.Linear(3, 3, bias=False).double()
    if shared_module:
        head = encoder
    head.weight = encoder.weight
    learner = MAML(nn.Sequential(encoder, nn.Tanh()), nn.Sequential(head), inner_lr=0.1, inner_steps=2)
    assert not any(name.startswith("head.") for name in learner.named_parameters())
    assert_rows_are_those_of_the_reference(learner, INNER["sgd"], 2)


def test_support_statistics_are_those_of_the_adapted_support_set():
    encoder, head = networks(norm=True)
    task = tasks()[0]
    learner = MAML(encoder, head, inner_steps=0, norm="support")
    found = learner.predict(task.support_x, task.support_y, task.query_x)
    layer = copy.deepcopy(encoder)
    before = layer[0](task.support_x)
    layer[1].running_mean, layer[1].running_var = before.mean(0).detach(), before.var(0, unbiased=False).detach()
    torch.testing.assert_close(found, head(layer.eval()(task.query_x)).detach())


class Twice(nn.Module):
    """One batch normalization, used twice in a forward pass."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3).double()

    def forward(self, x):
        return self.norm(5 + 3 * self.norm(x))


def test_a_normalization_used_twice_replays_each_calls_own_statistics():
    task = tasks()[0]
    outputs = {}
    for norm in ("batch", "support"):
        torch.manual_seed(0)
        learner = MAML(Twice(), nn.Linear(3, 3).double(), inner_steps=0, norm=norm)
        outputs[norm] = learner.predict(task.support_x, task.support_y, task.support_x)
    torch.testing.assert_close(outputs["support"], outputs["batch"])


def test_a_normalization_shared_by_encoder_and_head_keeps_its_running_statistics():
    shared = nn.BatchNorm1d(3).double()
    learner = MAML(nn.Sequential(shared), nn.Sequential(shared, nn.Linear(3, 3).double()), inner_lr=0.1)
    before = shared.running_mean.clone()
    learner.rows(tasks())
    assert torch.equal(shared.running_mean, before)


def test_frozen_statistics_require_layers_that_track_them():
    encoder = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False).double())
    learner = MAML(encoder, nn.Linear(3, 3).double(), norm="frozen")
    with pytest.raises(OptionError, match=r"'frozen' needs running statistics; a BatchNorm1d"):
        learner.evaluate(tasks())


def test_an_outer_optimizer_of_other_parameters_raises():
    learner = MAML(*networks(), inner_lr=0.1)
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(OptionError, match="`outer` must hold parameters of the learner; it holds none"):
        learner.step(tasks(), other)
    some = torch.optim.SGD(learner.head.parameters(), lr=0.1)  # training only some of them is allowed
    before = learner.encoder[0].weight.clone()
    learner.step(tasks(), some)
    assert torch.equal(learner.encoder[0].weight, before)


def test_regression_is_scored_by_mean_squared_error():
    batch = tasks()
    y = batch.query_x[..., :1]
    regression = TaskBatch(batch.support_x, batch.support_x[..., :1], batch.query_x, y)
    learner = MAML(networks()[0], nn.Linear(4, 1).double(), inner_lr=0.01)
    result = learner.evaluate(regression)
    assert result.metric == "mse"
    outputs = learner.predict(regression[0].support_x, regression[0].support_y, regression[0].query_x)
    assert result.scores[0] == pytest.approx(float((outputs - y[0]).square().mean()))
    assert learner.step(regression, torch.optim.SGD(learner.parameters(), lr=0.1)).accuracies is None


def test_tasks_may_be_a_list_and_inference_mode_is_supported():
    learner = MAML(*networks(norm=True), inner_lr=0.1)
    batch = tasks()
    with torch.inference_mode():
        inside = learner.evaluate(
            [Task(t.support_x + 0, t.support_y, t.query_x + 0, t.query_y, t.domain) for t in batch]
        )
    assert inside == learner.evaluate(batch)
    assert torch.equal(learner.rows(list(batch)).losses, learner.rows(batch).losses)
    with pytest.raises(DataError, match="at least one task"):
        learner.evaluate([])
    with pytest.raises(DataError, match="at least one task"):
        learner.rows([])


def test_a_diverging_inner_loop_is_reported_and_changes_nothing():
    encoder, head = networks()
    learner = MAML(encoder, head, inner_lr=1.7e308, inner_steps=3)
    before = copy.deepcopy(learner.state_dict())
    with pytest.raises(NonfiniteError, match=r"of domain domain .*Lower the learning rate"):
        learner.step(tasks(), torch.optim.SGD(learner.parameters(), lr=0.1))
    assert str(learner.state_dict()) == str(before)
