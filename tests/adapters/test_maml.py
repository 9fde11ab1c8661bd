"""MAML and FOMAML: rows against a hand-written loop, `higher` and a closed form; parameters, statistics, steps."""

import copy

import pytest
import torch
import torchopt
from torch import nn

from gradhomog import DataError, NonfiniteError, OptionError, Task, TaskBatch
from gradhomog_adapters.maml import MAML
from tests.adapters.checks import networks, tasks

INNER = {
    "sgd": lambda: torchopt.sgd(lr=0.1),
    "weight decay": lambda: torchopt.sgd(lr=0.1, weight_decay=0.05),
    "momentum": lambda: torchopt.sgd(lr=0.1, momentum=0.9),
    "dampening": lambda: torchopt.sgd(lr=0.1, momentum=0.9, dampening=0.5),
    "adam": lambda: torchopt.adam(lr=0.02, eps_root=1e-8),
    "rmsprop": lambda: torchopt.rmsprop(lr=0.02, eps=1e-3),
    "chain": lambda: torchopt.chain(torchopt.clip.clip_grad_norm(1e6), torchopt.sgd(lr=0.1)),
}


def reference_row(encoder, head, task, inner, steps, first_order):
    """One row with `torch.func` and TorchOpt only: the gradient of the loss after the inner loop."""
    both = nn.Sequential(encoder, head)
    start = {name: p.detach().clone().requires_grad_() for name, p in both.named_parameters()}

    def loss(parameters, x, y):
        return nn.functional.cross_entropy(torch.func.functional_call(both, parameters, (x,)), y)

    transformation, parameters = inner(), start
    state = transformation.init(parameters)
    for _ in range(steps):
        grads = torch.autograd.grad(
            loss(parameters, task.support_x, task.support_y), list(parameters.values()), create_graph=not first_order
        )
        updates, state = transformation.update(
            dict(zip(parameters, grads, strict=True)), state, params=parameters, inplace=False
        )
        parameters = torchopt.apply_updates(parameters, updates, inplace=False)
        if first_order:
            parameters = {name: p.detach().requires_grad_() for name, p in parameters.items()}
    target = parameters if first_order else start
    grads = torch.autograd.grad(loss(parameters, task.query_x, task.query_y), list(target.values()))
    names = [f"encoder.{n}" for n, _ in encoder.named_parameters()] + [f"head.{n}" for n, _ in head.named_parameters()]
    return dict(zip(names, grads, strict=True))


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("norm", [False, True])
def test_rows_equal_a_hand_written_loop_in_float64(inner, first_order, norm):
    # TorchOpt's RMSProp divides by the zero gradient of a bias before batch normalization: NaN also in the reference.
    encoder, head = networks(norm and inner != "rmsprop")
    learner = MAML(encoder, head, inner=INNER[inner], inner_steps=3, first_order=first_order)
    batch = tasks()
    rows = learner.rows(batch)
    for slot, task in enumerate(batch):
        expected = reference_row(copy.deepcopy(encoder), copy.deepcopy(head), task, INNER[inner], 3, first_order)
        assert set(rows.jacobian) == set(expected)
        for name, gradient in expected.items():
            torch.testing.assert_close(rows.jacobian[name][slot], gradient, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("first_order", [False, True])
def test_the_head_has_rows_if_the_encoder_is_frozen_or_has_no_parameters(first_order):
    batch = tasks()
    encoder, head = networks()
    for parameter in encoder.parameters():
        parameter.requires_grad_(False)
    frozen = MAML(encoder, head, inner_lr=0.1, first_order=first_order).rows(batch)
    assert set(frozen.jacobian) == {"head.weight", "head.bias"}
    assert float(frozen.feature_grads[0].abs().max()) > 0
    bare = MAML(nn.Identity(), nn.Linear(3, 3).double(), inner_lr=0.1, first_order=first_order).rows(batch)
    assert float(bare.jacobian["head.weight"].abs().max()) > 0


def test_tied_parameters_have_one_row_that_is_the_sum_over_their_uses():
    torch.manual_seed(0)
    encoder, head = nn.Linear(3, 3, bias=False).double(), nn.Linear(3, 3, bias=False).double()
    head.weight = encoder.weight
    learner = MAML(encoder, head, inner_lr=0.1, inner_steps=2)
    batch = tasks(1)
    rows = learner.rows(batch)
    assert list(rows.jacobian) == ["encoder.weight"]
    w = encoder.weight
    for _ in range(2):
        loss = nn.functional.cross_entropy(batch[0].support_x @ w.T @ w.T, batch[0].support_y)
        w = w - 0.1 * torch.autograd.grad(loss, w, create_graph=True)[0]
    loss = nn.functional.cross_entropy(batch[0].query_x @ w.T @ w.T, batch[0].query_y)
    torch.testing.assert_close(rows.jacobian["encoder.weight"][0], torch.autograd.grad(loss, encoder.weight)[0])


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


@pytest.mark.parametrize(
    ("make", "lr"),
    [(torch.optim.Adam, 0.05), (torch.optim.SGD, 1.0), (torchopt.Adam, 0.05), (torchopt.SGD, 1.0)],
)
def test_any_outer_optimizer_with_zero_grad_and_step_reduces_the_loss(make, lr):
    learner = MAML(*networks(), inner_lr=0.1, inner_steps=2)
    outer = make(learner.parameters(), lr=lr)
    batch = tasks()
    first = learner.step(batch, outer).losses.mean()
    for _ in range(15):
        last = learner.step(batch, outer).losses.mean()
    assert last < 0.9 * first


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
