"""`gradhomog.loss` in loops that call `loss.backward()`."""

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import NonfiniteError, OptionError

from .networks import Model, gradients, inputs

METHODS = ["none", "static(weights=[1, 2, 3])", "pcgrad", "upgrad", "gradnorm", "trimmed_mean", "uw"]


def total(model, pipe, **options):
    return gradhomog.loss(model.losses(model.encoder(inputs())), pipe, parameters=model.encoder, **options)


@pytest.mark.parametrize("text", METHODS)
def test_its_backward_writes_the_gradients_of_gradhomog_backward_with_identical_bits(text):
    one, other = Model(), Model()
    pipe, reference = gradhomog.pipeline(text), gradhomog.pipeline(text)
    for _ in range(3):
        for model in (one, other):
            model.zero_grad()
        total(one, pipe).backward()
        other.backward(reference)
        assert all(torch.equal(a, b) for a, b in zip(gradients(one), gradients(other), strict=True))
        with torch.no_grad():
            for a, b in zip(one.parameters(), other.parameters(), strict=True):
                a -= 0.01 * a.grad
                b -= 0.01 * b.grad
    assert repr(pipe.state_dict()) == repr(reference.state_dict())


def test_its_value_is_the_mean_of_the_losses_of_the_present_tasks():
    model, pipe = Model(), gradhomog.pipeline("mgda")
    losses = model.losses(model.encoder(inputs()))
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(gradhomog.loss(losses, pipe, parameters=model.encoder).detach(), expected.detach())
    losses[1] = None
    value = gradhomog.loss(losses, pipe, parameters=model.encoder)
    torch.testing.assert_close(value.detach(), (losses[0] + losses[2]).detach() / 2)


def test_hooks_after_accumulation_run_once_per_backward_and_gradients_accumulate():
    model, seen = Model(), []
    weight = next(model.encoder.parameters())
    weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.clone()))
    for _ in range(2):
        total(model, gradhomog.pipeline("mgda")).backward()
    assert len(seen) == 2
    torch.testing.assert_close(seen[1], 2 * seen[0])


INVALID = {
    "a number": lambda losses: [float(losses[0].detach()), *losses[1:]],
    "one scalar": lambda losses: losses[0],
    "a vector": lambda losses: [losses[0].repeat(2), *losses[1:]],
    "an integer": lambda losses: [losses[0].detach().long(), *losses[1:]],
    "all None": lambda losses: [None] * 3,
    "no loss": lambda losses: [],
}


@pytest.mark.parametrize("case", INVALID)
def test_losses_are_validated_without_gradients_as_with_them(case):
    model = Model()

    def call():
        losses = model.losses(model.encoder(inputs()))
        gradhomog.loss(INVALID[case](losses), gradhomog.pipeline("pcgrad"), parameters=model.encoder)

    with pytest.raises(OptionError) as trained:
        call()
    with torch.no_grad(), pytest.raises(OptionError) as evaluated:
        call()
    assert str(evaluated.value) == str(trained.value)


@pytest.mark.parametrize("frozen", [False, True])
def test_without_gradients_it_is_the_mean_without_a_graph_and_takes_no_step(frozen):
    model, pipe = Model().requires_grad_(not frozen), gradhomog.pipeline("gradnorm")
    with torch.no_grad():
        value = total(model, pipe)
        torch.testing.assert_close(value, torch.stack(model.losses(model.encoder(inputs()))).mean())
    assert not value.requires_grad
    assert pipe.steps == 0


@pytest.mark.parametrize("other_term", [False, True])
def test_its_second_derivative_raises_and_changes_nothing(other_term):
    model, pipe = Model(), gradhomog.pipeline("gradnorm")
    weight = model.encoder[0].weight
    value = total(model, pipe) + (weight.square().sum() if other_term else 0)
    with pytest.raises(OptionError, match=r"not differentiable twice, but .* create_graph=True"):
        torch.autograd.grad(value, weight, create_graph=True)
    assert pipe.steps == 0


def test_backward_takes_one_step_and_no_state_changes_before():
    model, pipe, reports = Model(), gradhomog.pipeline("gradnorm"), []
    value = total(model, pipe, report=reports.append)
    assert pipe.steps == 0
    assert reports == []
    value.backward()
    assert pipe.steps == 1
    assert [report.tasks for report in reports] == [(0, 1, 2)]


def test_a_second_backward_raises_and_changes_nothing():
    model, pipe = Model(), gradhomog.pipeline("gradnorm")
    value = total(model, pipe)
    value.backward(retain_graph=True)
    before = [gradient.clone() for gradient in gradients(model)]
    with pytest.raises(OptionError, match="must be called once; it was called twice"):
        value.backward()
    assert pipe.steps == 1
    assert all(torch.equal(a, b) for a, b in zip(before, gradients(model), strict=True))


def test_an_infinite_gradient_raises_without_a_scaler_and_is_written_with_one():
    model, pipe = Model(), gradhomog.pipeline("gradnorm")

    def infinite():
        losses = model.losses(model.encoder(inputs()))
        losses[1] = losses[1] * 1e308 * 10
        return gradhomog.loss(losses, pipe, parameters=model.encoder)

    with pytest.raises(NonfiniteError, match=r"task 1 is not finite: its loss is inf.* Lower the learning") as raised:
        infinite().backward()
    assert "eps_root" not in str(raised.value)  # advice for inner optimizers
    assert all(parameter.grad is None for parameter in model.parameters())
    (65536.0 * infinite()).backward()
    assert all(bool(torch.isinf(gradient).all()) for gradient in gradients(model))
    assert pipe.steps == 0


def test_a_gradient_scaler_trains_a_half_precision_model():
    torch.manual_seed(0)
    encoder, heads = nn.Linear(5, 8), nn.ModuleList(nn.Linear(8, 1) for _ in range(2))
    parameters = [*encoder.parameters(), *heads.parameters()]
    optimizer, pipe = torch.optim.SGD(parameters, lr=0.05), gradhomog.pipeline("pcgrad")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=100)
    x, first, last = torch.randn(16, 5), None, None
    for _ in range(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            z = torch.relu(encoder(x))
            losses = [(head(z).float() - index).square().mean() for index, head in enumerate(heads)]
        value = gradhomog.loss(losses, pipe, parameters=encoder)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        first, last = first or float(value.detach()), float(value.detach())
    assert last < 0.5 * first
    assert 0 < pipe.steps < 60  # steps that overflowed at 2⁴⁰ were skipped, and did not change the homogenizers


def test_it_works_through_torch_autograd_grad_and_non_leaf_parameters():
    model = Model()
    leaf = torch.ones(3, dtype=torch.float64, requires_grad=True)
    adapted = 2 * leaf
    value = gradhomog.loss([adapted.sum(), -adapted.square().sum()], gradhomog.pipeline("none"), parameters=[adapted])
    (gradient,) = torch.autograd.grad(value, leaf)
    torch.testing.assert_close(gradient, 2 * (1 - 2 * adapted.detach()) / 2)
    assert model.encoder[0].weight.grad is None
