"""MAML++: rows against a hand-written loop, MAML, a closed form; rates, scales and statistics per step; schedules."""

import copy

import pytest
import torch
import torchopt
from torch import nn

from gradhomog import Homogenizer, NonfiniteError, OptionError
from gradhomog_adapters.maml import MAML
from gradhomog_adapters.mamlpp import MAMLPP, cosine, loss_weights
from tests.adapters.checks import networks, tasks

OFF = {"learn_rates": False, "step_norm": False, "multi_step_steps": 0}


def make_learner(homogenizers=None, **options):
    """Return a learner whose rates, scales and shifts differ between tensors and steps."""
    learner = MAMLPP(*networks(True), homogenizers, **{"inner_lr": 0.1, "inner_steps": 3, **options})
    generator = torch.Generator().manual_seed(7)
    for name, parameter in learner.named_parameters().items():
        if name.startswith("learner."):
            parameter.data *= 1 + torch.rand(parameter.shape, generator=generator, dtype=parameter.dtype)
    return learner


def step_value(learner, name, k):
    return dict(learner.extra_modules.named_parameters())[name][k]


def reference_loss_and_row(learner, task, weights, first_order=False):
    """Σ v_k L_Q and its gradients, for two linear layers, one batch normalization and a head."""
    live = {n: p for n, p in learner.named_parameters().items() if not n.startswith("learner.")}
    adapted = dict(live)

    def loss(p, k, x, y):
        x = x @ p["encoder.0.weight"].T + p["encoder.0.bias"]
        x = (x - x.mean(0)) / torch.sqrt(x.var(0, unbiased=False) + 1e-5)
        x = torch.tanh(
            x * step_value(learner, "norm.encoder.1.weight", k) + step_value(learner, "norm.encoder.1.bias", k)
        )
        x = torch.tanh(x @ p["encoder.3.weight"].T + p["encoder.3.bias"])
        return nn.functional.cross_entropy(x @ p["head.weight"].T + p["head.bias"], y)

    total = torch.zeros((), dtype=torch.float64)
    for k, weight in enumerate(weights):
        gradients = torch.autograd.grad(
            loss(adapted, k, task.support_x, task.support_y), list(adapted.values()), create_graph=True
        )
        adapted = {
            name: p - step_value(learner, f"rates.{name}", k) * (g.detach() if first_order else g)
            for (name, p), g in zip(adapted.items(), gradients, strict=True)
        }
        total = total + weight * loss(adapted, k, task.query_x, task.query_y)
    names = learner.named_parameters()
    return total, dict(zip(names, torch.autograd.grad(total, list(names.values()), allow_unused=True), strict=True))


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("until", "done", "weights"), [(10, 0, [1 / 3] * 3), (10, 4, [0.2, 0.2, 0.6]), (10, 10, [0.0, 0.0, 1.0])]
)
def test_rows_equal_a_hand_written_loop_in_float64(first_order, engine, until, done, weights):
    learner = make_learner(multi_step_steps=until, first_order_steps=1000 * first_order, engine=engine)
    for _ in range(done):
        learner.on_step_end()
    batch = tasks()
    rows = learner.rows(batch)
    for slot, task in enumerate(batch):
        loss, expected = reference_loss_and_row(learner, task, weights, first_order)
        torch.testing.assert_close(rows.losses[slot], loss.detach(), rtol=1e-11, atol=0)
        for name, gradient in expected.items():
            expected_row = torch.zeros_like(rows.jacobian[name][slot]) if gradient is None else gradient
            torch.testing.assert_close(rows.jacobian[name][slot], expected_row, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.slow_after_first
@pytest.mark.parametrize("norm", ["batch", "support", "frozen"])
@pytest.mark.parametrize("first_order_steps", [0, 2])
@pytest.mark.parametrize(
    "inner", ["sgd", "momentum", "adam", torchopt.sgd(lr=0.1, weight_decay=0.05)], ids=["sgd", "momentum", "adam", "wd"]
)
def test_with_every_part_off_rows_and_predictions_are_those_of_maml_bit_for_bit(norm, first_order_steps, inner):
    common = {"inner": inner, "inner_lr": 0.1, "inner_steps": 3, "norm": norm, "engine": "loop", "test_steps": 4}
    ours, batch = MAMLPP(*networks(True), **common, **OFF, first_order_steps=first_order_steps), tasks()
    for step in range(3):
        theirs = MAML(*networks(True), **common, first_order=step < first_order_steps)
        found, expected = ours.rows(batch), theirs.rows(batch)
        assert list(found.jacobian) == list(expected.jacobian)
        assert all(torch.equal(found.jacobian[name], rows) for name, rows in expected.jacobian.items())
        assert torch.equal(found.losses, expected.losses)
        assert torch.equal(found.feature_grads[0], expected.feature_grads[0])
        assert ours.evaluate(batch) == theirs.evaluate(batch)
        ours.on_step_end()


def test_scales_and_shifts_per_step_replace_those_of_the_layer():
    learner = MAMLPP(*networks(True), inner_steps=3)
    names = set(learner.named_parameters())
    assert {"learner.norm.encoder.1.weight", "learner.norm.encoder.1.bias", "learner.rates.encoder.0.bias"} < names
    assert not names & {"encoder.1.weight", "encoder.1.bias", "learner.rates.encoder.1.weight"}
    before = learner.evaluate(tasks())
    learner.encoder[1].weight.data.fill_(torch.nan)
    assert learner.evaluate(tasks()) == before


def test_a_normalization_or_a_rate_that_is_frozen_is_a_constant():
    expected = make_learner().rows(tasks())
    learner = make_learner()
    learner.extra_modules["rates"].requires_grad_(False)
    found = learner.rows(tasks())
    assert {name for name in expected.jacobian if "rates" not in name} == set(found.jacobian)
    assert all(torch.equal(found.jacobian[name], expected.jacobian[name]) for name in found.jacobian)
    learner = make_learner()
    learner.encoder[1].requires_grad_(False)  # every step then uses the layer's scale and shift
    plain = make_learner()
    for part in ("weight", "bias"):
        whole = dict(plain.extra_modules.named_parameters())[f"norm.encoder.1.{part}"]
        whole.data.copy_(getattr(plain.encoder[1], part).detach().expand(3, 6))
    assert not any("norm" in name or name.startswith("encoder.1") for name in learner.named_parameters())
    torch.testing.assert_close(learner.rows(tasks()).losses, plain.rows(tasks()).losses, rtol=1e-12, atol=0)


def test_without_batch_normalization_there_are_no_parameters_per_step():
    learner = MAMLPP(*networks(norm=False), norm="running")
    assert not any("norm" in name for name in learner.named_parameters())
    learner.step(tasks(), torch.optim.SGD(learner.parameters(), lr=0.1))
    learner.evaluate(tasks())


def test_at_meta_test_queries_use_the_parameters_of_the_last_step():
    learner = make_learner(multi_step_steps=0)
    found = torch.tensor(learner.evaluate(tasks()).losses, dtype=torch.float64)
    torch.testing.assert_close(found, learner.rows(tasks()).losses)


def test_further_steps_than_in_training_use_the_last_parameters():
    few, many = make_learner(inner_steps=2, test_steps=5), make_learner(inner_steps=5)
    for name, parameter in many.extra_modules.named_parameters():
        if parameter.dim():
            known = dict(few.extra_modules.named_parameters())[name]
            parameter.data.copy_(known[[0, 1, 1, 1, 1]])
    assert few.evaluate(tasks()) == many.evaluate(tasks())


def test_multi_step_weights_are_those_of_the_published_code_at_whole_epochs():
    # 5 steps, 10 epochs: 1/5 − e/50 but at least 0.03/5, and the last 1/5 + 4e/50 but at most 1 − 4 · 0.03/5.
    assert loss_weights(5, 0, 10) == pytest.approx([0.2] * 5)
    assert loss_weights(5, 5, 10) == pytest.approx([0.1] * 4 + [0.6])
    assert loss_weights(5, 9, 10) == pytest.approx([0.02] * 4 + [0.92])
    assert loss_weights(5, 99, 100) == pytest.approx([0.006] * 4 + [0.976])
    assert loss_weights(5, 10, 10) == loss_weights(5, 0, 0) == [0.0] * 4 + [1.0]
    assert loss_weights(1, 0, 10) == [1.0]


def test_after_the_annealing_the_query_set_is_encoded_once():
    learner = make_learner(multi_step_steps=1, engine="loop")
    calls = []
    learner.encoder.register_forward_pre_hook(lambda module, inputs: calls.append(len(inputs[0])))
    learner.rows(tasks(1))
    assert calls == [6] * 3 + [9] * 3
    learner.on_step_end()
    calls.clear()
    learner.rows(tasks(1))
    assert calls == [6] * 3 + [9]


def test_running_statistics_average_the_inputs_of_each_step():
    learner = MAMLPP(*networks(True), inner_lr=0.1, inner_steps=1, norm="running", engine="loop")
    seen = []
    learner.encoder[1].register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0].detach()))
    learner.step(tasks(2), torch.optim.SGD(learner.parameters(), lr=0.0))
    # Recorded first: a support pass and a query pass for each task.
    mean, var = (torch.stack([start] * 2) for start in (torch.zeros(6).double(), torch.ones(6).double()))
    for index, x in enumerate(seen[:4]):
        mean[index % 2] = 0.9 * mean[index % 2] + 0.1 * x.mean(0)
        var[index % 2] = 0.9 * var[index % 2] + 0.1 * x.var(0)
    found = dict(learner.extra_modules["statistics"].named_buffers())
    torch.testing.assert_close(found["encoder.1.running_mean"], mean)
    torch.testing.assert_close(found["encoder.1.running_var"], var)
    assert found["encoder.1.num_batches_tracked"].tolist() == [2, 2]
    assert learner.encoder[1].num_batches_tracked == 0
    assert torch.equal(learner.encoder[1].running_mean, torch.zeros(6).double())


def test_statistics_of_failed_and_dropped_tasks_are_not_recorded():
    broken = tasks()
    broken.query_x[1] = torch.nan
    learner = MAMLPP(*networks(True), norm="running")
    outer, before = torch.optim.SGD(learner.parameters(), lr=0.1), copy.deepcopy(learner.state_dict())
    with pytest.raises(NonfiniteError):
        learner.step(broken, outer)
    assert str(learner.state_dict()) == str(before)
    learner.homogenizers.nonfinite = "drop"
    learner.step(broken, outer)
    found = dict(learner.extra_modules["statistics"].named_buffers())
    assert bool(torch.isfinite(found["encoder.1.running_mean"]).all())
    assert found["encoder.1.num_batches_tracked"].tolist() == [2] * 6


def test_running_statistics_require_layers_that_track_them():
    encoder = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False).double())
    with pytest.raises(
        OptionError, match=r"'running' needs layers with running statistics; `encoder.0`, a BatchNorm1d"
    ):
        MAMLPP(encoder, nn.Linear(3, 3).double(), norm="running")


def test_the_outer_rate_is_that_of_torchs_cosine_schedule():
    learner, batch = MAMLPP(*networks(True), inner_steps=1, anneal_steps=4, final_outer_lr=0.01), tasks()
    groups = [{"params": learner.parameters()[:2]}, {"params": learner.parameters()[2:], "lr": 0.5}]
    outer = torch.optim.SGD(groups, lr=0.1)
    oracle = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 0.5)])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(oracle, T_max=4, eta_min=0.01)
    for _ in range(5):
        learner.step(batch, outer)
        assert [g["lr"] for g in outer.param_groups] == pytest.approx([g["lr"] for g in oracle.param_groups])
        oracle.step()
        schedule.step()
    learner.step(batch, outer)
    assert outer.param_groups[1]["lr"] == pytest.approx(0.01)
    assert outer.param_groups[1]["initial_lr"] == 0.5


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
def test_a_failed_step_restores_the_rate(rate):
    learner, broken = MAMLPP(*networks(True), inner_steps=1, anneal_steps=4), tasks()
    broken.query_x[0] = torch.nan
    outer = torch.optim.SGD(learner.parameters(), lr=rate)
    for expected in ({"lr"}, {"lr", "initial_lr"}):
        before = copy.deepcopy(outer.state_dict())
        with pytest.raises(NonfiniteError):
            learner.step(broken, outer)
        assert outer.state_dict() == before
        assert expected <= set(outer.param_groups[0])
        learner.step(tasks(), outer)


def test_other_optimizers_raise_and_anneal_with_the_cosine_schedule():
    learner = MAMLPP(*networks(True), inner_steps=1, anneal_steps=4)
    with pytest.raises(OptionError, match=r"got a torchopt\.\S*Adam, whose rate cannot be set.*mamlpp\.cosine"):
        learner.step(tasks(), torchopt.Adam(learner.parameters(), lr=0.1))
    with pytest.raises(OptionError, match=r"`final_outer_lr` must not exceed the outer optimizer's rate, 1e-06"):
        learner.step(tasks(), torch.optim.SGD(learner.parameters(), lr=1e-6))
    ours, theirs = (MAMLPP(*networks(True), inner_steps=1, anneal_steps=steps) for steps in (3, 0))
    one = torch.optim.SGD(ours.parameters(), lr=0.1)
    two = torchopt.SGD(theirs.parameters(), lr=cosine(0.1, 1e-5, 3))
    for seed in range(4):
        ours.step(tasks(seed=seed), one)
        theirs.step(tasks(seed=seed), two)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-9)


class Identity(Homogenizer):
    def transform(self, features, keys):
        return 1.0 * features


def test_feature_grads_of_every_transform_are_sums_over_all_passes():
    """The conformance kit compares those of one transform with finite differences."""
    one, three = (
        make_learner([Identity() for _ in range(count)], multi_step_steps=10).rows(tasks(2)) for count in (1, 3)
    )
    assert len(three.features) == len(three.feature_grads) == 4
    for gradients in three.feature_grads:
        torch.testing.assert_close(gradients, one.feature_grads[0])
