"""Variants of MAML: rows against finite differences, hand-written inner loops, closed forms, and MAML itself."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, mse_loss

import gradhomog
from gradhomog import OptionError, TaskBatch
from gradhomog_adapters.alfa import ALFA
from gradhomog_adapters.cavia import CAVIA
from gradhomog_adapters.maml import MAML
from gradhomog_adapters.meta_sgd import MetaSGD
from gradhomog_adapters.sharp_maml import SharpMAML, ascent_step
from tests.adapters import checks
from tests.adapters.checks import networks, tasks


def rows_of(name, norm=False, **options):
    return gradhomog.learner(name, *networks(norm), inner_lr=0.1, engine="loop", **options).rows(tasks()).jacobian


# -- ANIL and BOIL ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "calls"), [("anil", 2), ("cavia", 2), ("maml", 8)])
def test_learners_that_do_not_adapt_the_encoder_encode_the_support_set_once(name, calls):
    encoder, head = networks()
    learner = gradhomog.learner(name, encoder.append(checks.CallCounter()), head, inner_steps=7, engine="loop")
    learner.rows(tasks(1))
    assert encoder[-1].calls == calls


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize(
    ("name", "given", "adapted"),
    [
        ("anil", {}, "head.*"), ("anil", {"adapt": "*.bias"}, "*.bias"), ("boil", {}, "encoder.*"),
        ("boil", {"adapt": "encoder.3.*"}, "encoder.3.*"),
    ],
)  # fmt: skip
def test_they_are_maml_that_adapts_a_part_of_the_network(name, given, adapted, first_order):
    options = {"inner_steps": 4, "first_order": first_order}
    maml = rows_of("maml", True, adapt=adapted, **options)
    torch.testing.assert_close(rows_of(name, True, **given, **options), maml, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("options", [{"engine": "loop"}, {"engine": "vmap"}, {"recompute": True}], ids=str)
def test_an_inner_loop_without_trainable_parameters_has_no_effect(options):
    encoder, head = networks()
    learner = gradhomog.learner("anil", encoder, head, **options)
    head.requires_grad_(False)
    checks.assert_rows_match_autograd(
        learner, tasks(), lambda task: cross_entropy(head(encoder(task.query_x)), task.query_y)
    )


# -- Meta-SGD --------------------------------------------------------------------------------------------------------


def with_rates(frozen, **options):
    learner = MetaSGD(*networks(), rates=0.1, **options)
    learner.extra_modules.requires_grad_(not frozen)
    return learner


def with_constant_rates(**options):
    """ALFA whose generator returns rates of one and no decay."""
    learner = ALFA(*networks(), inner_lr=0.1, **options)
    last, count = learner.extra_modules["generator"][2], len(learner.adapted)
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor([1.0] * count + [0.0] * count))
    return learner


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("make", [partial(with_rates, False), partial(with_rates, True), with_constant_rates])
def test_equal_rates_give_maml_also_if_they_are_frozen(make, first_order):
    options = {"inner_steps": 3, "first_order": first_order}
    ours, maml = make(**options, engine="loop").rows(tasks()).jacobian, rows_of("maml", **options)
    for name, rows in maml.items():
        torch.testing.assert_close(ours[name], rows, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", [partial(MetaSGD, rates=(0.2, 0.3)), ALFA])
def test_initial_values_are_drawn_from_a_separate_generator(kind):
    encoder, head = networks()
    state = torch.get_rng_state()
    first, same, other = (str(kind(encoder, head, seed=seed).extra_modules.state_dict()) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert first == same != other


def test_initial_rates_are_uniform():
    rates = MetaSGD(*networks(), rates=(0.2, 0.3)).extra_modules.state_dict()
    values = torch.cat([value.flatten() for value in rates.values()])
    assert 0.2 <= values.min() < 0.22
    assert 0.28 < values.max() <= 0.3


# -- ALFA ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", [False, True])
def test_rows_are_derivatives_if_the_generator_of_alfa_ignores_gradients(recompute):
    # The gradients in τ are constants, so rows are exact derivatives if the generator ignores them.
    learner = ALFA(*networks(), inner_lr=0.3, inner_weight_decay=0.1, inner_steps=2, recompute=recompute)
    with torch.no_grad():
        learner.extra_modules["generator"][0].weight[:, len(learner.adapted) :] = 0
        learner.extra_modules["generator"][2].bias += 1
    learner.extra_modules["generator"][0].requires_grad_(False)
    checks.assert_rows_match_finite_differences(learner, tasks(1))


def test_predictions_of_alfa_equal_a_hand_written_inner_loop():
    encoder, head = networks()
    learner, task = ALFA(encoder, head, inner_lr=0.5, inner_weight_decay=0.2, inner_steps=2, seed=3), tasks()[1]
    network = torch.nn.ModuleDict({"encoder": encoder, "head": head})
    theta = {name: p.detach().clone() for name, p in network.named_parameters()}

    def outputs(x, at):
        features = functional_call(encoder, {n[8:]: t for n, t in at.items() if n.startswith("encoder.")}, (x,))
        return functional_call(head, {n[5:]: t for n, t in at.items() if n.startswith("head.")}, (features,))

    for _ in range(2):
        at = {name: tensor.requires_grad_() for name, tensor in theta.items()}
        gradients = torch.autograd.grad(cross_entropy(outputs(task.support_x, at), task.support_y), [*at.values()])
        tau = torch.stack([t.detach().mean() for t in at.values()] + [s.mean() for s in gradients])
        alpha, beta = learner.extra_modules["generator"](tau).detach().chunk(2)
        theta = {
            name: ((1 - 0.5 * 0.2 * beta[i]) * at[name] - 0.5 * alpha[i] * gradients[i]).detach()
            for i, name in enumerate(at)
        }
    expected = outputs(task.query_x, theta)
    torch.testing.assert_close(learner.predict(task.support_x, task.support_y, task.query_x), expected)


def test_further_steps_than_in_training_use_the_last_rates():
    learner = ALFA(*networks(), inner_steps=2, test_steps=5)
    task = tasks()[0]
    assert bool(learner.predict(task.support_x, task.support_y, task.query_x).isfinite().all())


# -- CAVIA -----------------------------------------------------------------------------------------------------------


def networks_with_context_input(context):
    """Return networks whose first layer accepts inputs with the context appended."""
    encoder, head = networks()
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3 + context, 6).double(), *encoder[1:]), head


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("on", ["features", "inputs"])
def test_rows_of_cavia_are_derivatives(on, engine):
    pair = networks(norm=True) if on == "features" else networks_with_context_input(2)
    learner = CAVIA(*pair, context=2, on=on, inner_lr=0.5, inner_steps=3, engine=engine)
    checks.assert_rows_match_finite_differences(learner, tasks(1))


def test_images_receive_the_context_as_constant_channels():
    encoder = nn.Sequential(nn.Conv2d(1 + 2, 4, 3), nn.Tanh(), nn.Flatten()).double()
    seen = []
    encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    learner = CAVIA(encoder, nn.Linear(4 * 9, 2).double(), context=2, on="inputs", inner_steps=1, engine="loop")
    x, y = torch.randn(1, 4, 1, 5, 5, dtype=torch.float64), torch.tensor([[0, 1, 0, 1]])
    learner.rows(TaskBatch(x, y, x, y))
    context = seen[-1][:, 1:]
    assert bool((context == context[:1, :, :1, :1]).all())
    assert bool((context != 0).all())
    assert torch.equal(seen[0][:, 1:], torch.zeros_like(context))


def test_a_head_without_a_linear_layer_cannot_be_modulated():
    with pytest.raises(OptionError, match="`head` must start with a torch"):
        CAVIA(nn.Linear(3, 2), nn.Identity())


def test_support_statistics_of_a_head_are_those_of_modulated_features():
    encoder, head = networks()
    head = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()
    learner = CAVIA(encoder, head, context=2, inner_lr=0.5, inner_steps=2, norm="support")
    film, task = learner.extra_modules["film"].weight.detach(), tasks()[1]

    def hidden(x, phi):
        gamma, beta = (film @ phi).chunk(2)
        return head[0]((1 + gamma) * encoder(x) + beta)

    def outputs(x, statistics):
        return head[3](torch.tanh((x - statistics.mean(0)) / (statistics.var(0, unbiased=False) + 1e-5).sqrt()))

    phi = torch.zeros(2, dtype=torch.float64)
    for _ in range(2):
        phi.requires_grad_()
        support = hidden(task.support_x, phi)
        (gradient,) = torch.autograd.grad(cross_entropy(outputs(support, support), task.support_y), phi)
        phi = (phi - 0.5 * gradient).detach()
    expected = outputs(hidden(task.query_x, phi), hidden(task.support_x, phi)).detach()
    torch.testing.assert_close(learner.predict(task.support_x, task.support_y, task.query_x), expected)


# -- Sharp-MAML ------------------------------------------------------------------------------------------------------

OPTIONS = {"inner_lr": 0.1, "inner_steps": 2}


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_rows_are_those_of_maml_at_the_perturbed_point(engine):
    found = SharpMAML(*networks(), outer_radius=0.3, engine=engine, **OPTIONS).rows(tasks())
    maml = MAML(*networks(), **OPTIONS)
    mean = {name: rows.mean(0) for name, rows in maml.rows(tasks()).jacobian.items()}
    length = torch.cat([tensor.flatten() for tensor in mean.values()]).norm()
    with torch.no_grad():
        for name, parameter in maml.named_parameters().items():
            parameter += 0.3 * mean[name] / length
    expected = maml.rows(tasks())
    torch.testing.assert_close(found.losses, expected.losses)
    for name, rows in expected.jacobian.items():
        torch.testing.assert_close(found.jacobian[name], rows, rtol=1e-9, atol=1e-12)


def test_an_inner_step_uses_the_gradient_at_the_perturbed_point():
    # ½ a θ² at θ > 0: the gradient a θ is positive, so ε = ρ and θ' = θ − α a (θ + ρ); w.r.t. θ: (1 − α a)(θ' − t).
    head, alpha, rho = nn.Linear(1, 1, bias=False).double(), 0.3, 0.2
    nn.init.constant_(head.weight, 0.7)
    x, ones = torch.full((1, 4, 1), 1.5, dtype=torch.float64), torch.ones(1, 4, 1, dtype=torch.float64)
    learner = SharpMAML(
        nn.Identity(), head, outer_radius=0.0, inner_radius=rho, inner_lr=alpha, inner_steps=1,
        loss=lambda out, y: mse_loss(out, y) / 2,
    )  # fmt: skip
    a = 1.5**2
    row = learner.rows(TaskBatch(x, 0 * x, ones, 2 * ones)).jacobian["head.weight"][0]
    expected = (1 - alpha * a) * (0.7 - alpha * a * (0.7 + rho) - 2)
    torch.testing.assert_close(row, torch.full((1, 1), expected, dtype=torch.float64))


def test_meta_test_is_that_of_maml():
    encoder, head = networks()
    learner = SharpMAML(encoder, head, outer_radius=0.3, inner_radius=0.2, **OPTIONS)
    task = tasks()[0]
    inputs = task.support_x, task.support_y, task.query_x
    assert torch.equal(learner.predict(*inputs), MAML(encoder, head, **OPTIONS).predict(*inputs))


def test_a_gradient_of_any_size_is_scaled_to_the_radius():
    for size in (1e-40, 1.0, 1e30):
        found = ascent_step({"a": size * torch.tensor([3.0, 4.0])}, 2.0)["a"]
        torch.testing.assert_close(found, torch.tensor([1.2, 1.6]), rtol=1e-4, atol=0.0)
    assert not ascent_step({"a": torch.zeros(2)}, 2.0)["a"].any()
