"""MAML and FOMAML: rows against a hand-written loop, `higher` and a closed form; parameters, statistics, steps."""

import copy
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch import nn

import gradhomog
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


def cloned(net, values):
    """A copy of a module whose parameters are given tensors, tied ones the same, as learn2learn's clones have."""
    clone = copy.deepcopy(net)
    for own, other in zip(net.modules(), clone.modules(), strict=True):
        for name, parameter in own._parameters.items():
            if parameter is not None:
                other._parameters[name] = values[parameter]
    return clone


def row_of_clones(net, task, steps, rates, adapted, first_order):
    """The gradient of the query loss after gradient descent on clones, w.r.t. all parameters and their rates.

    Without TorchOpt, `torch.func` or names: the loop of learn2learn's MAML and MetaSGD.
    """
    values = {parameter: parameter.clone() for parameter in net.parameters()}
    for _ in range(steps):
        loss = nn.functional.cross_entropy(cloned(net, values)(task.support_x), task.support_y)
        fast = [values[parameter] for parameter in adapted]
        for parameter, gradient in zip(
            adapted, torch.autograd.grad(loss, fast, create_graph=not first_order), strict=True
        ):
            values[parameter] = values[parameter] - rates[parameter] * gradient
    loss = nn.functional.cross_entropy(cloned(net, values)(task.query_x), task.query_y)
    trained = [*net.parameters(), *(rate for rate in rates.values() if isinstance(rate, torch.Tensor))]
    return torch.autograd.grad(loss, trained)


def float32_networks(kind):
    torch.manual_seed(0)
    if kind == "convolutions":
        block = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*block, nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()), nn.Linear(4, 3)
    encoder, head = nn.Linear(3, 3), nn.Linear(3, 3)
    if kind == "tied weights":
        head.weight = encoder.weight
        return nn.Sequential(encoder, nn.Tanh()), nn.Sequential(head)
    return nn.Sequential(encoder, nn.ReLU(), nn.Linear(3, 3), nn.ReLU()), head


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("kind", ["layers", "convolutions", "tied weights"])
@pytest.mark.parametrize("name", ["maml", "fomaml", "anil", "meta_sgd"])
def test_rows_of_the_loop_are_those_of_clones_of_the_module(name, kind, steps):
    encoder, head = float32_networks(kind)
    exact = name != "anil"  # it encodes the support set once, and so adds gradients in another order
    if not exact:
        encoder, head = encoder.double(), head.double()
    options = {} if name == "meta_sgd" else {"inner_lr": 0.1}
    learner = gradhomog.learner(name, encoder, head, inner_steps=steps, engine="loop", **options)
    net = nn.Sequential(OrderedDict(encoder=encoder, head=head))
    names = dict(zip(net.parameters(), dict(net.named_parameters()), strict=True))
    rates = dict(learner.extra_modules.named_parameters())
    rates = {parameter: rates.get(f"rates.{text}", 0.1) for parameter, text in names.items()}
    batch = tasks(shape=(1, 6, 6) if kind == "convolutions" else (3,))
    if exact:
        batch = replace(batch, support_x=batch.support_x.float(), query_x=batch.query_x.float())
    adapted = [parameter for parameter, text in names.items() if exact or text.startswith("head.")]
    found = learner.rows(batch).jacobian
    for slot, task in enumerate(batch):
        row = row_of_clones(net, task, steps, rates, adapted, first_order=name == "fomaml")
        assert len(row) == len(found)
        for block, gradient in zip(found.values(), row, strict=True):
            bound = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-10, "atol": 1e-15}
            torch.testing.assert_close(block[slot], gradient, **bound)


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
