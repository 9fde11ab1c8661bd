"""MAML and FOMAML: rows against a hand-written loop, finite differences, `higher` and a closed form; nothing leaks."""

from __future__ import annotations

import copy
import pickle

import higher
import pytest
import torch
import torchopt
from torch import nn

import gradhomog
from gradhomog import DataError, NonfiniteError, OptionError, Task, TaskBatch
from gradhomog_adapters.maml import MAML
from tests.adapters.few_shot import networks, tasks

INNER = {
    "sgd": lambda: torchopt.sgd(lr=0.1),
    "weight decay": lambda: torchopt.sgd(lr=0.1, weight_decay=0.05),
    "momentum": lambda: torchopt.sgd(lr=0.1, momentum=0.9),
    "dampening": lambda: torchopt.sgd(lr=0.1, momentum=0.9, dampening=0.5),
    "adam": lambda: torchopt.adam(lr=0.02, eps_root=1e-8),
    "rmsprop": lambda: torchopt.rmsprop(lr=0.02, eps=1e-3),
    "chain": lambda: torchopt.chain(torchopt.clip.clip_grad_norm(1e6), torchopt.sgd(lr=0.1)),
}


def by_hand(encoder, head, task, inner, steps, first_order):
    """One row with nothing but `torch.func` and TorchOpt: the loss after the inner loop, differentiated."""
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
    # A bias before batch normalization has no gradient, which TorchOpt's RMSProp divides by: NaN in the reference too.
    encoder, head = networks(norm and inner != "rmsprop")
    learner = MAML(encoder, head, inner=INNER[inner], inner_steps=3, first_order=first_order)
    batch = tasks()
    rows = learner.rows(batch)
    for slot, task in enumerate(batch):
        expected = by_hand(copy.deepcopy(encoder), copy.deepcopy(head), task, INNER[inner], 3, first_order)
        assert set(rows.jacobian) == set(expected)
        for name, gradient in expected.items():
            torch.testing.assert_close(rows.jacobian[name][slot], gradient, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("inner", ["sgd", "momentum", "adam"])
def test_rows_equal_finite_differences_of_the_query_loss(inner):
    # Adam divides by the gradient of a bias before batch normalization, which is zero: too curved for differences.
    encoder, head = networks(norm=inner != "adam")
    learner = MAML(encoder, head, inner=INNER[inner], inner_steps=3)
    batch = tasks(2)
    rows = learner.rows(batch)
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        direction = {
            n: torch.randn(p.shape, generator=generator, dtype=p.dtype) for n, p in learner.named_parameters().items()
        }
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                for name, p in learner.named_parameters().items():
                    p += sign * 1e-6 * direction[name]
            losses.append(learner.rows(batch).losses)
            with torch.no_grad():
                for name, p in learner.named_parameters().items():
                    p -= sign * 1e-6 * direction[name]
        numeric = (losses[0] - losses[1]) / 2e-6
        exact = sum((rows.jacobian[name] * direction[name]).flatten(1).sum(1) for name in direction)
        torch.testing.assert_close(exact, numeric, rtol=1e-5, atol=1e-8)


def test_rows_equal_those_of_higher():
    encoder, head = networks()
    batch = tasks()
    rows = MAML(encoder, head, inner=torchopt.sgd(lr=0.1), inner_steps=4).rows(batch)
    model = nn.Sequential(encoder, head)
    for slot, task in enumerate(batch):
        with higher.innerloop_ctx(model, torch.optim.SGD(model.parameters(), lr=0.1), copy_initial_weights=False) as (
            f,
            opt,
        ):
            for _ in range(4):
                opt.step(nn.functional.cross_entropy(f(task.support_x), task.support_y))
            loss = nn.functional.cross_entropy(f(task.query_x), task.query_y)
            grads = torch.autograd.grad(loss, list(model.parameters()))
        for ours, theirs in zip(rows.jacobian.values(), grads, strict=True):
            torch.testing.assert_close(ours[slot], theirs, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("first_order", [False, True])
def test_on_a_quadratic_the_row_is_the_closed_form(first_order):
    # L_S = ½ w·A w,  L_Q = ½ w·B w: row = (I − αA)^K B (I − αA)^K w, without the first factor if first order.
    generator = torch.Generator().manual_seed(0)
    a, b = (m @ m.T for m in torch.randn(2, 4, 4, generator=generator, dtype=torch.float64))
    alpha, steps = 0.05, 3

    class Point(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, generator=generator, dtype=torch.float64))

        def forward(self, x):
            return (self.w @ x @ self.w / 2)[None, None]

    encoder = Point()
    # The input is the matrix; targets are float, so that the task is a regression; the loss is the output itself.
    learner = MAML(
        encoder,
        nn.Identity(),
        inner_lr=alpha,
        inner_steps=steps,
        first_order=first_order,
        loss=lambda out, y: out.sum(),
    )
    task = Task(a, torch.zeros(1, 1), b, torch.zeros(1, 1))
    row = learner.rows(TaskBatch.stack([task])).jacobian["encoder.w"][0]
    shrink = torch.linalg.matrix_power(torch.eye(4, dtype=torch.float64) - alpha * a, steps)
    expected = b @ shrink @ encoder.w
    torch.testing.assert_close(row, (expected if first_order else shrink @ expected).detach(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["maml", "fomaml"])
def test_both_are_found_by_name(name):
    learner = gradhomog.learner(name, *networks(), homogenizers="pcgrad", inner_steps=2)
    assert learner.first_order == (name == "fomaml")
    assert str(learner.homogenizers) == "pcgrad"
    assert gradhomog.learner("maml(first_order=true)", *networks()).first_order


def test_a_step_is_the_outer_optimizers_step_on_the_homogenized_direction():
    encoder, head = networks()
    twin = copy.deepcopy((encoder, head))
    batch = tasks()
    learner = MAML(encoder, head, "pcgrad", inner_lr=0.1, inner_steps=2)
    learner.step(batch, torch.optim.SGD(learner.parameters(), lr=1.0))
    rows = MAML(*twin, inner_lr=0.1, inner_steps=2).rows(batch).jacobian
    direction = gradhomog.pipeline("pcgrad").combine(rows)
    before = MAML(*twin).named_parameters()
    for name, parameter in learner.named_parameters().items():
        torch.testing.assert_close(parameter, before[name] - direction[name])


@pytest.mark.parametrize(
    ("make", "lr"),
    [(torch.optim.Adam, 0.05), (torch.optim.SGD, 1.0), (torchopt.Adam, 0.05), (torchopt.SGD, 1.0)],
)
def test_any_outer_optimizer_with_zero_grad_and_step_learns(make, lr):
    learner = MAML(*networks(), inner_lr=0.1, inner_steps=2)
    outer = make(learner.parameters(), lr=lr)
    batch = tasks()
    first = learner.step(batch, outer).losses.mean()
    for _ in range(15):
        last = learner.step(batch, outer).losses.mean()
    assert last < 0.9 * first


def test_the_report_tells_the_rows_and_the_weights():
    batch = tasks()
    learner = MAML(*networks(), "static(weights=[1, 2, 3])", inner_lr=0.1)
    rows = learner.rows(batch)
    report = learner.step(batch, torch.optim.SGD(learner.parameters(), lr=0.0))
    matrix = torch.cat([value.flatten(1) for value in rows.jacobian.values()], dim=1)
    torch.testing.assert_close(report.norms, matrix.norm(dim=1))
    torch.testing.assert_close(report.cosines, torch.corrcoef(torch.cat([matrix, -matrix], 1))[:3, :3])
    assert report.weights.tolist() == [0.5, 1.0, 1.5]
    assert report.domains == ("domain 0", "domain 1", "domain 2")
    assert torch.equal(report.losses, rows.losses)
    assert report.record()["weights"] == [0.5, 1.0, 1.5]


def test_feature_cotangents_are_the_derivatives_of_each_loss_by_the_query_features():
    encoder, head = networks()
    batch = tasks()
    learner = MAML(encoder, head, inner_steps=0)
    rows = learner.rows(batch)
    for slot, task in enumerate(batch):
        features = encoder(task.query_x).detach().requires_grad_()
        loss = nn.functional.cross_entropy(head(features), task.query_y)
        torch.testing.assert_close(rows.feature_cotangents[0][slot], torch.autograd.grad(loss, features)[0])
        torch.testing.assert_close(rows.features[0][slot], features.detach())


# -- which parameters are adapted ------------------------------------------------------------------------------------


def test_only_the_chosen_parameters_are_adapted_and_all_are_learnt():
    encoder, head = networks()
    learner = MAML(encoder, head, inner_lr=0.1, inner_steps=2, adapt="head.*")
    batch = tasks(1)
    task = batch[0]
    rows = learner.rows(batch)
    weight, bias = head.weight, head.bias
    z = encoder(task.support_x)
    for _ in range(2):
        loss = nn.functional.cross_entropy(z @ weight.T + bias, task.support_y)
        gw, gb = torch.autograd.grad(loss, (weight, bias), create_graph=True)
        weight, bias = weight - 0.1 * gw, bias - 0.1 * gb
    loss = nn.functional.cross_entropy(encoder(task.query_x) @ weight.T + bias, task.query_y)
    for (name, parameter), row in zip(learner.named_parameters().items(), rows.jacobian.values(), strict=True):
        expected = torch.autograd.grad(loss, parameter, retain_graph=True)[0]
        torch.testing.assert_close(row[0], expected, rtol=1e-10, atol=1e-13, msg=name)


def test_frozen_parameters_are_constants_with_no_row():
    encoder, head = networks()
    encoder[0].weight.requires_grad_(False)
    rows = MAML(encoder, head).rows(tasks())
    assert "encoder.0.weight" not in rows.jacobian
    assert "encoder.0.bias" in rows.jacobian


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


def test_a_parameter_that_the_loss_does_not_use_has_a_zero_row():
    encoder, head = networks()
    encoder.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    rows = MAML(encoder, head, inner="adam").rows(tasks())
    assert torch.equal(rows.jacobian["encoder.unused"], torch.zeros(3, 2, dtype=torch.float64))


def test_dead_relus_under_adam_give_finite_rows():
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    nn.init.constant_(encoder[0].bias, -100.0)
    batch = tasks()
    batch = TaskBatch(batch.support_x.float(), batch.support_y, batch.query_x.float(), batch.query_y)
    rows = MAML(encoder, nn.Linear(4, 3), inner="adam", inner_steps=3).rows(batch)
    assert all(torch.isfinite(value).all() for value in rows.jacobian.values())


# -- nothing leaks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["batch", "support", "frozen"])
def test_steps_and_evaluations_leave_buffers_modes_hooks_and_forwards_as_they_were(norm):
    encoder, head = networks(norm=True)
    encoder.eval()
    encoder[1].train()
    learner = MAML(encoder, head, inner_lr=0.1, norm=norm)
    buffers = copy.deepcopy(dict(encoder.named_buffers()))
    modes = [m.training for m in encoder.modules()]
    batch = tasks()
    learner.step(batch, torch.optim.SGD(learner.parameters(), lr=0.1))
    learner.evaluate(batch)
    learner.predict(batch[0].support_x, batch[0].support_y, batch[0].query_x)
    assert all(torch.equal(b, buffers[name]) for name, b in encoder.named_buffers())
    assert [m.training for m in encoder.modules()] == modes
    assert "forward" not in encoder[1].__dict__


@pytest.mark.parametrize("norm", ["batch", "support", "frozen"])
@pytest.mark.parametrize("inner", ["sgd", "dampening", "adam"])
def test_a_tasks_row_does_not_depend_on_the_other_tasks_of_the_batch(norm, inner):
    batch = tasks()
    together = MAML(*networks(norm=True), inner=INNER[inner], norm=norm, engine="loop").rows(batch)
    for slot, task in enumerate(batch):
        alone = MAML(*networks(norm=True), inner=INNER[inner], norm=norm, engine="loop").rows(TaskBatch.stack([task]))
        for name, value in alone.jacobian.items():
            assert torch.equal(value[0], together.jacobian[name][slot])


def test_support_statistics_make_queries_independent_of_each_other():
    batch = tasks()
    task = batch[0]
    outputs = {}
    for norm in ("batch", "support", "frozen"):
        learner = MAML(*networks(norm=True), inner_lr=0.1, norm=norm)
        together = learner.predict(task.support_x, task.support_y, task.query_x)
        halves = [learner.predict(task.support_x, task.support_y, part) for part in task.query_x.split(3)]
        outputs[norm] = torch.allclose(together, torch.cat(halves))
    assert outputs == {"batch": False, "support": True, "frozen": True}


def test_support_statistics_are_those_of_the_adapted_support_set():
    encoder, head = networks(norm=True)
    task = tasks()[0]
    learner = MAML(encoder, head, inner_steps=0, norm="support")
    found = learner.predict(task.support_x, task.support_y, task.query_x)
    layer = copy.deepcopy(encoder)
    before = layer[0](task.support_x)
    layer[1].running_mean, layer[1].running_var = before.mean(0).detach(), before.var(0, unbiased=False).detach()
    torch.testing.assert_close(found, head(layer.eval()(task.query_x)).detach())


def test_rows_with_support_statistics_equal_finite_differences():
    learner = MAML(*networks(norm=True), inner_lr=0.1, inner_steps=2, norm="support")
    batch = tasks(1)
    rows, parameter = learner.rows(batch), learner.encoder[0].weight
    numeric = torch.zeros_like(parameter)
    for index in range(parameter.numel()):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.view(-1)[index] += sign * 1e-5
            values.append(learner.rows(batch).losses[0])
            with torch.no_grad():
                parameter.view(-1)[index] -= sign * 1e-5
        numeric.view(-1)[index] = (values[0] - values[1]) / 2e-5
    torch.testing.assert_close(rows.jacobian["encoder.0.weight"][0], numeric.detach(), rtol=1e-5, atol=1e-8)


class Bomb(nn.Module):
    """Raises at its n-th call."""

    def __init__(self, calls):
        super().__init__()
        self.left = calls

    def forward(self, x):
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("boom")
        return x


@pytest.mark.parametrize("calls", [1, 3, 7])
def test_a_failing_inner_loop_leaves_everything_untouched(calls):
    encoder, head = networks(norm=True)
    encoder.append(Bomb(calls))
    learner = MAML(encoder, head, "gradnorm", norm="support", inner_steps=4, engine="loop")
    outer = torch.optim.Adam(learner.parameters(), lr=0.1)
    before = copy.deepcopy((learner.state_dict(), outer.state_dict()))
    with pytest.raises(RuntimeError, match="boom"):
        learner.step(tasks(), outer)
    after = (learner.state_dict(), outer.state_dict())
    assert str(after) == str(before)
    assert all(p.grad is None and p.is_leaf for p in learner.parameters())
    assert "forward" not in encoder[1].__dict__


def test_a_diverging_inner_loop_is_told_and_changes_nothing():
    encoder, head = networks()
    learner = MAML(encoder, head, inner_lr=1e200, inner_steps=3)
    before = copy.deepcopy(learner.state_dict())
    with pytest.raises(NonfiniteError, match=r"task 0 of domain domain 0.*Lower the learning rate"):
        learner.step(tasks(), torch.optim.SGD(learner.parameters(), lr=0.1))
    assert str(learner.state_dict()) == str(before)


def test_evaluation_equals_the_bare_network_whatever_the_homogenizers():
    batch = tasks()
    bare = MAML(*networks(norm=True), inner_lr=0.1).evaluate(batch)
    with torch.no_grad():  # the caller's mode must not matter
        other = MAML(*networks(norm=True), "pcgrad + gradnorm + mgda", inner_lr=0.1).evaluate(batch)
    assert bare == other
    assert bare.metric == "accuracy"
    assert len(bare.scores) == 3


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inner": "adagard"}, "`inner` must be one of"),
        ({"inner": 3}, "`inner` must be a name"),
        ({"inner": torch.optim.SGD}, "`inner` must be a name"),
        ({"inner": torchopt.MetaSGD}, "`inner` must be a name"),
        ({"inner": torchopt.sgd(lr=0.1, momentum=0.9, dampening=0.5)}, "given as a function"),
        ({"inner_lr": 0.0}, "`inner_lr` must be positive"),
        ({"inner_steps": -1}, "`inner_steps` must be an integer and not negative; got -1"),
        ({"test_steps": -1}, "`test_steps` must be an integer and not negative"),
        ({"adapt": "body.*"}, r"`adapt` must match.*'body.\*' matches none of encoder.0.weight"),
        ({"adapt": []}, "`adapt` must hold at least one pattern"),
        ({"inner_steps": 1.5}, "`inner_steps` must be an integer"),
        ({"norm": "instance"}, "`norm` must be 'batch', 'support' or 'frozen'"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        MAML(*networks(), **options)


def test_a_network_without_parameters_is_refused():
    with pytest.raises(OptionError, match=r"`encoder` must be a torch\.nn\.Module; got str"):
        MAML("encoder", nn.Linear(2, 2))
    with pytest.raises(OptionError, match="at least one parameter"):
        MAML(nn.Identity(), nn.Identity())


@pytest.mark.parametrize("text", ["none", "pcgrad", "gradnorm"])
def test_a_learner_saved_and_loaded_goes_on_bit_for_bit(text, tmp_path):
    def make():
        learner = MAML(*networks(norm=True), text, inner_lr=0.1)
        return learner, torch.optim.Adam(learner.parameters(), lr=0.01)

    learner, outer = make()
    for seed in range(3):
        learner.step(tasks(seed=seed), outer)
    torch.save({"learner": learner.state_dict(), "outer": outer.state_dict()}, tmp_path / "state.pt")
    fresh, fresh_outer = make()
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    fresh.load_state_dict(state["learner"])
    fresh_outer.load_state_dict(state["outer"])
    for seed in range(3, 6):
        first, second = learner.step(tasks(seed=seed), outer), fresh.step(tasks(seed=seed), fresh_outer)
        assert torch.equal(first.losses, second.losses)
    for one, two in zip(learner.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(one, two)


# -- inputs that showed a defect -------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_order", [False, True])
def test_a_frozen_encoder_or_one_without_parameters_lets_the_head_learn(first_order):
    batch = tasks()
    encoder, head = networks()
    for parameter in encoder.parameters():
        parameter.requires_grad_(False)
    frozen = MAML(encoder, head, inner_lr=0.1, first_order=first_order).rows(batch)
    assert set(frozen.jacobian) == {"head.weight", "head.bias"}
    assert float(frozen.feature_cotangents[0].abs().max()) > 0
    bare = MAML(nn.Identity(), nn.Linear(3, 3).double(), inner_lr=0.1, first_order=first_order).rows(batch)
    assert float(bare.jacobian["head.weight"].abs().max()) > 0


def test_a_parameter_frozen_after_the_learner_was_made_is_a_constant():
    encoder, head = networks()
    learner = MAML(encoder, head, inner_lr=0.1)
    encoder[0].bias.requires_grad_(False)
    assert "encoder.0.bias" not in learner.rows(tasks()).jacobian


def test_a_learner_can_be_copied_and_pickled_after_a_step_with_support_statistics():
    learner = MAML(*networks(norm=True), "pcgrad", inner_lr=0.1, norm="support")
    batch = tasks()
    learner.step(batch, torch.optim.SGD(learner.parameters(), lr=0.1))
    for other in (copy.deepcopy(learner), pickle.loads(pickle.dumps(learner))):
        assert other.evaluate(batch) == learner.evaluate(batch)


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


def test_frozen_statistics_that_do_not_exist_are_refused():
    encoder = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False).double())
    learner = MAML(encoder, nn.Linear(3, 3).double(), norm="frozen")
    with pytest.raises(OptionError, match=r"'frozen' needs running statistics; a BatchNorm1d"):
        learner.evaluate(tasks())


def test_tasks_may_come_as_a_list_and_under_inference_mode():
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


def test_an_outer_optimizer_of_other_parameters_is_refused():
    learner = MAML(*networks(), inner_lr=0.1)
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(OptionError, match="holds none of the learner's parameters"):
        learner.step(tasks(), other)
    some = torch.optim.SGD(learner.head.parameters(), lr=0.1)  # training a part of them is a choice
    before = learner.encoder[0].weight.clone()
    learner.step(tasks(), some)
    assert torch.equal(learner.encoder[0].weight, before)
