"""MAML++: rows against a hand-written loop, finite differences and closed forms; every part alone; all off is MAML."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torchopt
from torch import nn

from gradhomog import NonfiniteError, OptionError, Task, TaskBatch, pipeline
from gradhomog.testing.learners.spies import Shift
from gradhomog_adapters._mamlpp.multi_step import shares
from gradhomog_adapters.maml import MAML
from gradhomog_adapters.mamlpp import MAMLPP, cosine
from tests.adapters.few_shot import networks, tasks

OFF = {"learn_rates": False, "step_norm": False, "multi_step_steps": 0}


def learner(homogenizers=None, **options):
    """With rates, scales and shifts that differ from tensor to tensor and step to step."""
    made = MAMLPP(*networks(True), homogenizers, **{"inner_lr": 0.1, "inner_steps": 3, **options})
    generator = torch.Generator().manual_seed(7)
    for name, parameter in made.named_parameters().items():
        if name.startswith("learner."):
            parameter.data *= 1 + torch.rand(parameter.shape, generator=generator, dtype=parameter.dtype)
    return made


def value(made, name, k):
    return dict(made.own.named_parameters())[name][k]


def by_hand(made, task, weights, first_order=False):
    """Σ v_k L_Q written out: two matrices, one normalization, a head."""
    live = {n: p for n, p in made.named_parameters().items() if not n.startswith("learner.")}
    adapted = dict(live)

    def loss(p, k, x, y):
        x = x @ p["encoder.0.weight"].T + p["encoder.0.bias"]
        x = (x - x.mean(0)) / torch.sqrt(x.var(0, unbiased=False) + 1e-5)
        x = torch.tanh(x * value(made, "norm.encoder.1.weight", k) + value(made, "norm.encoder.1.bias", k))
        x = torch.tanh(x @ p["encoder.3.weight"].T + p["encoder.3.bias"])
        return nn.functional.cross_entropy(x @ p["head.weight"].T + p["head.bias"], y)

    total = torch.zeros((), dtype=torch.float64)
    for k, weight in enumerate(weights):
        slopes = torch.autograd.grad(
            loss(adapted, k, task.support_x, task.support_y), list(adapted.values()), create_graph=True
        )
        adapted = {
            name: p - value(made, f"rates.{name}", k) * (g.detach() if first_order else g)
            for (name, p), g in zip(adapted.items(), slopes, strict=True)
        }
        total = total + weight * loss(adapted, k, task.query_x, task.query_y)
    names = made.named_parameters()
    return total, dict(zip(names, torch.autograd.grad(total, list(names.values()), allow_unused=True), strict=True))


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("until", "done", "weights"), [(10, 0, [1 / 3] * 3), (10, 4, [0.2, 0.2, 0.6]), (10, 10, [0.0, 0.0, 1.0])]
)
def test_rows_equal_a_hand_written_loop_in_float64(first_order, engine, until, done, weights):
    made = learner(multi_step_steps=until, first_order_steps=1000 * first_order, engine=engine)
    for _ in range(done):
        made.stepped()
    batch = tasks()
    rows = made.rows(batch)
    for slot, task in enumerate(batch):
        loss, expected = by_hand(made, task, weights, first_order)
        torch.testing.assert_close(rows.losses[slot], loss.detach(), rtol=1e-11, atol=0)
        for name, gradient in expected.items():
            wanted = torch.zeros_like(rows.jacobian[name][slot]) if gradient is None else gradient
            torch.testing.assert_close(rows.jacobian[name][slot], wanted, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("norm", ["batch", "support", "frozen", "running"])
@pytest.mark.parametrize("options", [{}, {"multi_step_steps": 0}, {"learn_rates": False, "inner": "momentum"}])
def test_rows_equal_finite_differences_of_the_reported_losses(norm, options):
    made = learner(norm=norm, **options)
    batch, generator = tasks(2), torch.Generator().manual_seed(5)
    rows = made.rows(batch)
    for name, parameter in made.named_parameters().items():
        along = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        start, losses = parameter.detach().clone(), []
        for sign in (1, -1):
            parameter.data.copy_(start + sign * 1e-6 * along)
            losses.append(made.rows(batch).losses)
        parameter.data.copy_(start)
        exact = (rows.jacobian[name] * along).flatten(1).sum(1)
        torch.testing.assert_close(exact, (losses[0] - losses[1]) / 2e-6, rtol=1e-5, atol=1e-8, msg=name)


@pytest.mark.parametrize("first_order", [False, True])
def test_on_a_quadratic_rows_of_rates_and_start_are_the_closed_form(first_order):
    # L_S = ½ w·A w,  L_Q = ½ w·B w,  w' = w − α₀ A w,  w'' = w' − α₁ A w',  L = v₀ L_Q(w') + v₁ L_Q(w'').
    generator = torch.Generator().manual_seed(0)
    a, b = (m @ m.T for m in torch.randn(2, 4, 4, generator=generator, dtype=torch.float64))

    class Point(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, generator=generator, dtype=torch.float64))

        def forward(self, x):
            return (self.w @ x @ self.w / 2)[None, None]

    point = Point()
    made = MAMLPP(
        point, nn.Identity(), inner_steps=2, multi_step_steps=4, first_order_steps=9 * first_order,
        loss=lambda out, y: out.sum(),
    )  # fmt: skip
    made.stepped()  # v = (3/8, 5/8)
    rates = made.named_parameters()["learner.rates.encoder.w"]
    rates.data.copy_(torch.tensor([0.05, 0.02]))
    rows = made.rows([Task(a, torch.zeros(1, 1), b, torch.zeros(1, 1))]).jacobian
    w0, one = point.w.detach(), torch.eye(4, dtype=torch.float64)
    shrink = [one - float(rate) * a for rate in rates.detach()]
    w1 = shrink[0] @ w0
    w2 = shrink[1] @ w1
    through = [one, one] if first_order else shrink
    arriving = 3 / 8 * b @ w1 + through[1] @ (5 / 8 * b @ w2)  # by w'
    torch.testing.assert_close(rows["encoder.w"][0], through[0] @ arriving, rtol=1e-11, atol=1e-12)
    expected = torch.stack([-(a @ w0) @ arriving, -(a @ w1) @ (5 / 8 * b @ w2)])
    torch.testing.assert_close(rows["learner.rates.encoder.w"][0], expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("norm", ["batch", "support", "frozen"])
@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize(
    "inner", ["sgd", "momentum", "adam", torchopt.sgd(lr=0.1, weight_decay=0.05)], ids=["sgd", "momentum", "adam", "wd"]
)
def test_with_every_part_off_rows_and_predictions_are_those_of_maml_bit_for_bit(norm, first_order, inner):
    common = {"inner": inner, "inner_lr": 0.1, "inner_steps": 3, "norm": norm, "engine": "loop", "test_steps": 4}
    ours = MAMLPP(*networks(True), **common, **OFF, first_order_steps=int(first_order))
    theirs = MAML(*networks(True), **common, first_order=first_order)
    batch = tasks()
    found, expected = ours.rows(batch), theirs.rows(batch)
    assert list(found.jacobian) == list(expected.jacobian)
    assert all(torch.equal(found.jacobian[name], rows) for name, rows in expected.jacobian.items())
    assert torch.equal(found.losses, expected.losses)
    assert torch.equal(found.feature_cotangents[0], expected.feature_cotangents[0])
    assert ours.evaluate(batch) == theirs.evaluate(batch)


@pytest.mark.parametrize("part", [{"learn_rates": True}, {"step_norm": True}])
def test_a_part_that_has_not_been_trained_yet_changes_no_loss(part):
    # Rates all start at inner_lr; scales and shifts start alike, but stay in the inner loop.
    batch, common = tasks(), {"inner_lr": 0.1, "inner_steps": 2}
    ours = MAMLPP(*networks(True), **common, **{**OFF, **part})
    theirs = MAML(*networks(True), **common, adapt=["encoder.[03].*", "head.*"] if "step_norm" in part else "*")
    torch.testing.assert_close(ours.rows(batch).losses, theirs.rows(batch).losses, rtol=1e-12, atol=0)


# -- the multi-step loss ---------------------------------------------------------------------------------------------


def test_multi_step_shares_are_those_of_the_published_code_at_whole_epochs():
    # 5 steps, 10 epochs: 1/5 − e/50 but at least 0.03/5, and the last 1/5 + 4e/50 but at most 1 − 4 · 0.03/5.
    assert shares(5, 0, 10) == pytest.approx([0.2] * 5)
    assert shares(5, 5, 10) == pytest.approx([0.1] * 4 + [0.6])
    assert shares(5, 9, 10) == pytest.approx([0.02] * 4 + [0.92])
    assert shares(5, 99, 100) == pytest.approx([0.006] * 4 + [0.976])
    assert shares(5, 10, 10) == shares(5, 0, 0) == [0.0] * 4 + [1.0]
    assert shares(1, 0, 10) == [1.0]


def test_after_the_annealing_the_query_set_is_seen_once():
    made = learner(multi_step_steps=1, engine="loop")
    calls = []
    made.encoder.register_forward_pre_hook(lambda module, inputs: calls.append(len(inputs[0])))
    made.rows(tasks(1))
    assert calls == [6] * 3 + [9] * 3
    made.stepped()
    calls.clear()
    made.rows(tasks(1))
    assert calls == [6] * 3 + [9]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_cotangents_are_the_derivatives_by_a_move_of_the_features_of_all_passes(count):
    shifts = [Shift() for _ in range(count)]
    made, batch = learner(shifts, multi_step_steps=10), tasks(2)
    rows = made.rows(batch)
    assert len(rows.features) == len(rows.feature_cotangents) == count + 1
    for tap, shift in enumerate(shifts):
        losses = []
        for sign in (1, -1):
            shift.size = sign * 1e-6
            losses.append(made.rows(batch).losses)
        shift.size = 0.0
        along = torch.stack([shift.directions[slot] for slot in range(2)])
        numeric = (losses[0] - losses[1]) / 2e-6
        for cotangents, factor in ((rows.feature_cotangents[tap], 2.0), (rows.feature_cotangents[tap + 1], 1.0)):
            exact = (cotangents * along).sum((1, 2)) / factor
            torch.testing.assert_close(exact, numeric, rtol=1e-5, atol=1e-8)


# -- engines, homogenizers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["batch", "support", "frozen", "running"])
@pytest.mark.parametrize("inner", ["sgd", "adam"])
@pytest.mark.parametrize("options", [{}, {"multi_step_steps": 0}, {"first_order_steps": 9}, {"step_norm": False}])
def test_both_engines_give_the_same_rows(norm, inner, options):
    batch, found = tasks(), []
    for engine in ("loop", "vmap"):
        made = MAMLPP(*networks(True), inner=inner, inner_lr=0.05, inner_steps=2, norm=norm, engine=engine, **options)
        found.append(made.rows(batch))
    for name, rows in found[0].jacobian.items():
        torch.testing.assert_close(found[1].jacobian[name], rows, rtol=1e-7, atol=1e-9, msg=name)
    torch.testing.assert_close(found[1].losses, found[0].losses, rtol=1e-9, atol=0)
    torch.testing.assert_close(found[1].feature_cotangents[0], found[0].feature_cotangents[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("text", ["pcgrad", "rotogbml", "rotate + gradnorm"])
def test_homogenizers_attach_and_are_gone_at_meta_test(text):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()).double()
    head = nn.Linear(4 * 36, 3).double()
    images = torch.rand(3, 15, 1, 8, 8, dtype=torch.float64)
    y = torch.arange(3).repeat(3, 5)
    batch = TaskBatch(images[:, :6], y[:, :6], images[:, 6:], y[:, 6:], ("one", "two", "three"))
    bare = MAMLPP(copy.deepcopy(encoder), copy.deepcopy(head), inner_steps=2)
    made = MAMLPP(encoder, head, text, inner_steps=2)
    outer = torch.optim.SGD(made.parameters(), lr=0.1)
    for _ in range(2):
        report = made.step(batch, outer)
    assert bool(torch.isfinite(report.losses).all())
    bare.load_state_dict({**made.state_dict(), "homogenizers": {}})
    assert made.evaluate(batch) == bare.evaluate(batch)


# -- what is learnt --------------------------------------------------------------------------------------------------


def test_scales_and_shifts_by_step_stand_in_for_the_layers_own():
    made = MAMLPP(*networks(True), inner_steps=3)
    names = set(made.named_parameters())
    assert {"learner.norm.encoder.1.weight", "learner.norm.encoder.1.bias", "learner.rates.encoder.0.bias"} < names
    assert not names & {"encoder.1.weight", "encoder.1.bias", "learner.rates.encoder.1.weight"}
    before = made.evaluate(tasks())
    made.encoder[1].weight.data.fill_(torch.nan)
    assert made.evaluate(tasks()) == before


def test_a_normalization_or_a_rate_that_is_frozen_is_a_constant():
    expected = learner().rows(tasks())
    made = learner()
    made.own["rates"].requires_grad_(False)
    found = made.rows(tasks())
    assert {name for name in expected.jacobian if "rates" not in name} == set(found.jacobian)
    assert all(torch.equal(found.jacobian[name], expected.jacobian[name]) for name in found.jacobian)
    made = learner()
    made.encoder[1].requires_grad_(False)  # its own scale and shift, then, in every step
    plain = learner()
    for part in ("weight", "bias"):
        whole = dict(plain.own.named_parameters())[f"norm.encoder.1.{part}"]
        whole.data.copy_(getattr(plain.encoder[1], part).detach().expand(3, 6))
    assert not any("norm" in name or name.startswith("encoder.1") for name in made.named_parameters())
    torch.testing.assert_close(made.rows(tasks()).losses, plain.rows(tasks()).losses, rtol=1e-12, atol=0)


def test_without_batch_normalization_there_is_nothing_by_step():
    made = MAMLPP(*networks(norm=False), norm="running")
    assert not any("norm" in name for name in made.named_parameters())
    made.step(tasks(), torch.optim.SGD(made.parameters(), lr=0.1))
    made.evaluate(tasks())


def test_steps_beyond_those_of_training_do_as_the_last():
    few, many = learner(inner_steps=2, test_steps=5), learner(inner_steps=5)
    for name, parameter in many.own.named_parameters():
        if parameter.dim():
            known = dict(few.own.named_parameters())[name]
            parameter.data.copy_(known[[0, 1, 1, 1, 1]])
    assert few.evaluate(tasks()) == many.evaluate(tasks())


def test_no_inner_step_at_all_is_a_network_that_is_not_adapted():
    made, batch = MAMLPP(*networks(True), inner_steps=0), tasks(1)
    encoder, head = networks(True)
    loss = nn.functional.cross_entropy(head(encoder(batch[0].query_x)), batch[0].query_y)
    torch.testing.assert_close(made.rows(batch).losses[0], loss.detach(), rtol=1e-12, atol=0)


# -- running statistics by step --------------------------------------------------------------------------------------


def test_running_statistics_are_the_layers_average_of_what_each_step_meets():
    made = MAMLPP(*networks(True), inner_lr=0.1, inner_steps=1, norm="running", engine="loop")
    seen = []
    made.encoder[1].register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0].detach()))
    made.step(tasks(2), torch.optim.SGD(made.parameters(), lr=0.0))
    # Recorded first: a support pass and a query pass for each task.
    mean, var = (torch.stack([start] * 2) for start in (torch.zeros(6).double(), torch.ones(6).double()))
    for index, x in enumerate(seen[:4]):
        mean[index % 2] = 0.9 * mean[index % 2] + 0.1 * x.mean(0)
        var[index % 2] = 0.9 * var[index % 2] + 0.1 * x.var(0)
    found = dict(made.own["statistics"].named_buffers())
    torch.testing.assert_close(found["encoder.1.running_mean"], mean)
    torch.testing.assert_close(found["encoder.1.running_var"], var)
    assert found["encoder.1.num_batches_tracked"].tolist() == [2, 2]
    assert made.encoder[1].num_batches_tracked == 0
    assert torch.equal(made.encoder[1].running_mean, torch.zeros(6).double())


def test_with_running_statistics_queries_do_not_see_each_other():
    task, inductive = tasks(1)[0], {}
    for norm in ("batch", "running"):
        made = MAMLPP(*networks(True), inner_lr=0.1, norm=norm)
        made.step(tasks(), torch.optim.SGD(made.parameters(), lr=0.1))
        whole = made.predict(task.support_x, task.support_y, task.query_x)
        parts = [made.predict(task.support_x, task.support_y, x) for x in task.query_x.split(3)]
        inductive[norm] = torch.allclose(whole, torch.cat(parts))
    assert inductive == {"batch": False, "running": True}


def test_what_a_failing_or_dropped_task_showed_is_not_recorded():
    batch = tasks()
    broken = TaskBatch(batch.support_x, batch.support_y, batch.query_x.clone(), batch.query_y, batch.domains)
    broken.query_x[1] = torch.nan
    made = MAMLPP(*networks(True), norm="running")
    before = copy.deepcopy(made.state_dict())
    with pytest.raises(NonfiniteError):
        made.step(broken, torch.optim.SGD(made.parameters(), lr=0.1))
    assert str(made.state_dict()) == str(before)
    made = MAMLPP(*networks(True), pipeline("none", nonfinite="drop"), norm="running")
    made.step(broken, torch.optim.SGD(made.parameters(), lr=0.1))
    found = dict(made.own["statistics"].named_buffers())
    assert bool(torch.isfinite(found["encoder.1.running_mean"]).all())
    assert found["encoder.1.num_batches_tracked"].tolist() == [2] * 6


# -- schedules -------------------------------------------------------------------------------------------------------


def test_the_outer_rate_is_that_of_torchs_cosine_schedule():
    made, batch = MAMLPP(*networks(True), inner_steps=1, anneal_steps=4, final_outer_lr=0.01), tasks()
    groups = [{"params": made.parameters()[:2]}, {"params": made.parameters()[2:], "lr": 0.5}]
    outer = torch.optim.SGD(groups, lr=0.1)
    oracle = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 0.5)])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(oracle, T_max=4, eta_min=0.01)
    for _ in range(5):
        made.step(batch, outer)
        assert [g["lr"] for g in outer.param_groups] == pytest.approx([g["lr"] for g in oracle.param_groups])
        oracle.step()
        schedule.step()
    made.step(batch, outer)
    assert outer.param_groups[1]["lr"] == pytest.approx(0.01)
    assert outer.param_groups[1]["initial_lr"] == 0.5


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
def test_a_step_that_fails_leaves_the_rate_as_it_was(rate):
    made, batch = MAMLPP(*networks(True), inner_steps=1, anneal_steps=4), tasks()
    outer = torch.optim.SGD(made.parameters(), lr=rate)
    for expected in ({"lr"}, {"lr", "initial_lr"}):
        before = copy.deepcopy(outer.state_dict())
        batch.query_x[0] = torch.nan
        with pytest.raises(NonfiniteError):
            made.step(batch, outer)
        assert outer.state_dict() == before
        assert expected <= set(outer.param_groups[0])
        batch = tasks()
        made.step(batch, outer)


def test_optimizers_whose_rate_cannot_be_set_are_told_how_to_anneal_and_do():
    made = MAMLPP(*networks(True), inner_steps=1, anneal_steps=4)
    with pytest.raises(OptionError, match=r"got a torchopt\.\S*Adam, whose rate cannot be reached.*mamlpp\.cosine"):
        made.step(tasks(), torchopt.Adam(made.parameters(), lr=0.1))
    with pytest.raises(OptionError, match=r"`final_outer_lr` must not exceed the outer optimizer's rate, 1e-06"):
        made.step(tasks(), torch.optim.SGD(made.parameters(), lr=1e-6))
    ours, theirs = (MAMLPP(*networks(True), inner_steps=1, anneal_steps=steps) for steps in (3, 0))
    one = torch.optim.SGD(ours.parameters(), lr=0.1)
    two = torchopt.SGD(theirs.parameters(), lr=cosine(0.1, 1e-5, 3))
    for seed in range(4):
        ours.step(tasks(seed=seed), one)
        theirs.step(tasks(seed=seed), two)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-9)


def test_first_order_ends_after_its_steps():
    made, batch = MAMLPP(*networks(True), **OFF, inner_steps=2, inner_lr=0.1, first_order_steps=2), tasks()
    outer = torch.optim.SGD(made.parameters(), lr=0.0)
    expected = {order: MAML(*networks(True), inner_steps=2, inner_lr=0.1, first_order=order).rows(batch).jacobian
                for order in (True, False)}  # fmt: skip
    for first_order in (True, True, False):
        found = made.rows(batch).jacobian
        for name, rows in expected[first_order].items():
            torch.testing.assert_close(found[name], rows, rtol=1e-9, atol=1e-12)
        made.step(batch, outer)


SCHEDULED = {"multi_step_steps": 5, "first_order_steps": 4, "anneal_steps": 6, "norm": "running", "inner_steps": 2}


@pytest.mark.parametrize("how", ["saved", "pickled", "copied"])
def test_in_the_middle_of_all_schedules_a_run_goes_on_bit_for_bit(how, tmp_path):
    def make():
        made = MAMLPP(*networks(True), "gradnorm", inner_lr=0.1, **SCHEDULED)
        return made, torch.optim.Adam(made.parameters(), lr=0.01)

    def go_on(made, outer):
        losses = [made.step(tasks(seed=seed), outer).losses for seed in range(3, 8)]
        return torch.stack(losses), outer.param_groups[0]["lr"], made.evaluate(tasks())

    made, outer = make()
    for seed in range(3):
        made.step(tasks(seed=seed), outer)
    if how == "saved":
        torch.save([made.state_dict(), outer.state_dict()], tmp_path / "state.pt")
        second = make()
        for one, state in zip(second, torch.load(tmp_path / "state.pt", weights_only=True), strict=True):
            one.load_state_dict(state)
    else:
        second = pickle.loads(pickle.dumps((made, outer))) if how == "pickled" else copy.deepcopy((made, outer))
    expected, found = go_on(made, outer), go_on(*second)
    assert torch.equal(found[0], expected[0])
    assert found[1:] == expected[1:]


# -- what cannot be used ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inner": torchopt.sgd(lr=0.1)}, "`inner` must be a name, whose rates are learnt"),
        ({"inner_lr": -1.0}, "`inner_lr` must be positive"),
        ({"adapt": "encoder.1.*"}, "`adapt` must match more than scales and shifts"),
        ({"multi_step_steps": -1}, "`multi_step_steps` must be a number of meta-steps"),
        ({"first_order_steps": 0.5}, "`first_order_steps` must be a number of meta-steps"),
        ({"anneal_steps": True}, "`anneal_steps` must be a number of meta-steps"),
        ({"final_outer_lr": float("nan")}, "`final_outer_lr` must not be negative, and finite"),
        ({"norm": "layer"}, "`norm` must be"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        MAMLPP(*networks(True), **options)


def test_running_statistics_need_layers_that_have_them():
    encoder = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False).double())
    with pytest.raises(
        OptionError, match=r"'running' needs layers with running statistics; `encoder.0`, a BatchNorm1d"
    ):
        MAMLPP(encoder, nn.Linear(3, 3).double(), norm="running")
