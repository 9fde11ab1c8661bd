"""`gradhomog.loss` in loops that call `loss.backward()`, as a sum, and beside other terms."""

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import NonfiniteError, OptionError
from gradhomog.registry import installed

from .networks import Model, by_hand, flat, gradients, inputs, matrix

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


@pytest.mark.parametrize("text", ["mgda", "tracked"])
def test_its_value_is_the_mean_of_the_losses_of_the_present_tasks(text):
    model, pipe = Model(), gradhomog.pipeline(text)
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
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_without_gradients_it_is_the_reduction_without_a_graph_and_takes_no_step(reduction, frozen):
    model, pipe = Model().requires_grad_(not frozen), gradhomog.pipeline("gradnorm")
    with torch.no_grad():
        value = total(model, pipe, reduction=reduction)
        torch.testing.assert_close(value, getattr(torch, reduction)(torch.stack(model.losses(model.encoder(inputs())))))
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


# -- reduction="sum": value and scale are those of the sum, the direction is that of the pipeline --------------------


def losses_of(model, **changed):
    return {**dict(zip("abc", model.losses(model.encoder(inputs())), strict=True)), **changed}


def summed(losses, pipe, model, **options):
    return gradhomog.loss(losses, gradhomog.pipeline(pipe), parameters=model.encoder, reduction="sum", **options)


def rows_of(model, *names):
    losses = losses_of(model)
    return matrix([losses[name] for name in names], model.encoder.parameters())


def test_the_empty_pipeline_gives_the_value_and_the_gradient_of_the_sum():
    model, plain = Model(), Model()
    value, expected = summed(losses_of(model), "none", model), torch.stack([*losses_of(plain).values()]).sum()
    assert torch.equal(value, expected)
    value.backward()
    expected.backward()
    torch.testing.assert_close(gradients(model), gradients(plain), rtol=1e-14, atol=1e-13)  # the largest factor is 100


@pytest.mark.parametrize("text", ["upgrad", "pcgrad", "trimmed_mean", "static(weights=[1, 2, 5])"])
@pytest.mark.parametrize("factor", [1.0, 0.25, 8.0])
def test_the_gradient_is_the_direction_times_the_number_of_losses_and_the_incoming_gradient(text, factor):
    model = Model()
    encoder, heads = (found := by_hand(model, text, list(losses_of(model).values())))[:4], found[4:]
    (factor * summed(losses_of(model), text, model)).backward()
    expected = [*(3 * factor * gradient for gradient in encoder), *(factor * gradient for gradient in heads)]
    torch.testing.assert_close(gradients(model), expected)


def test_an_absent_loss_is_left_out_of_sum_and_scale():
    model = Model()
    losses = losses_of(model)
    expected = 2 * gradhomog.pipeline("upgrad").combine(rows_of(model, "a", "c"))
    value = summed({**losses, "b": None}, "upgrad", model)
    torch.testing.assert_close(value.detach(), (losses["a"] + losses["c"]).detach())
    value.backward()
    torch.testing.assert_close(flat(gradients(model)[:4]), expected)


@pytest.mark.parametrize("kept", ["one", 2, "all"])
def test_averages_of_constant_rows_have_the_scale_of_all_losses(kept):
    model, pipe = Model(), gradhomog.pipeline([("tracked", {"method": "upgrad", "rows": kept})])
    expected = 3 * gradhomog.pipeline("upgrad").combine(rows_of(model, "a", "b", "c"))
    for _ in range(3):
        model.zero_grad()
        summed(losses_of(model), pipe, model).backward()
    torch.testing.assert_close(flat(gradients(model)[:4]), expected)


def test_weighted_heads_receive_the_gradient_of_the_weighted_sum():
    model, plain = Model(), Model()
    summed(losses_of(model), "static(weights=[1, 3, 2])", model, heads="weighted").backward()
    sum(weight * loss for weight, loss in zip((0.5, 1.5, 1.0), losses_of(plain).values(), strict=True)).backward()
    torch.testing.assert_close(gradients(model), gradients(plain))


def test_a_dropped_loss_is_left_out_of_the_sum_of_gradients():
    model = Model()
    expected = rows_of(model, "a", "c").sum(0)
    infinite = torch.inf * losses_of(model)["b"]
    summed(losses_of(model, b=infinite), gradhomog.pipeline("none", nonfinite="drop"), model).backward()
    torch.testing.assert_close(flat(gradients(model)[:4]), expected)


def test_an_adversary_that_maximizes_the_sum_is_refused():
    model = Model()
    with pytest.raises(OptionError, match="must be minimized"):
        (-summed(losses_of(model), "none", model)).backward()


# -- a term of a sum, whose other terms depend on the same activations -----------------------------------------------


def penalty(z):
    return 0.1 * z.abs().mean() + z.square().mean()


def of_two_graphs(text, level):
    """The gradients of two backward passes through two graphs."""
    model = Model()
    z, pipe = model.encoder(inputs()), gradhomog.pipeline(text)
    gradhomog.backward(model.losses(z), pipe, parameters=model.encoder, features=z, level=level)
    penalty(model.encoder(inputs())).backward()
    return gradients(model)


@pytest.mark.parametrize("level", ["parameters", "features"])
@pytest.mark.parametrize("text", ["none", "uw", "pcgrad", "graddrop", "upgrad"])
def test_gradients_are_added_to_those_of_a_penalty_on_an_activation(text, level):
    model, pipe = Model(), gradhomog.pipeline(text)
    z = model.encoder(inputs())
    (gradhomog.loss(model.losses(z), pipe, parameters=model.encoder, features=z, level=level) + penalty(z)).backward()
    torch.testing.assert_close(gradients(model), of_two_graphs(text, level))
    assert pipe.steps == 1


def test_a_graph_that_backward_keeps_can_be_used_again():
    model = Model()
    z = model.encoder(inputs())
    gradhomog.loss(model.losses(z), gradhomog.pipeline("pcgrad"), parameters=model.encoder).backward(retain_graph=True)
    penalty(z).backward()
    torch.testing.assert_close(gradients(model), of_two_graphs("pcgrad", "parameters"))


def test_a_graph_that_nothing_else_uses_is_freed():
    model = Model()
    z = model.encoder(inputs())
    of_weights = model.encoder[0].weight.square().sum()  # depends on a leaf, not on an activation
    (gradhomog.loss(model.losses(z), gradhomog.pipeline("pcgrad"), parameters=model.encoder) + of_weights).backward()
    with pytest.raises(RuntimeError, match="second time"):
        z.sum().backward()


def test_a_sum_of_rows_that_overflows_is_an_error_and_writes_nothing():
    w = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
    gradhomog.loss([3e4 * w[0].float() for _ in range(3)], gradhomog.pipeline("none"), parameters=[w]).backward()
    assert w.grad[0] == 3e4
    w.grad = None
    losses = [3e4 * w[0].float() for _ in range(3)]
    with pytest.raises(NonfiniteError, match=r"the sum of the 3 rows overflows.* reduction='mean'"):
        gradhomog.loss(losses, gradhomog.pipeline("none"), parameters=[w], reduction="sum").backward()
    assert w.grad is None


@pytest.mark.parametrize("call", ["loss", "backward"])
@pytest.mark.parametrize("text", ["none", "upgrad"])
def test_a_closure_of_lbfgs_is_that_of_the_mean_or_warns(text, call):
    def trained(closure_of):
        model = Model()
        optimizer = torch.optim.LBFGS(model.encoder.parameters(), line_search_fn="strong_wolfe", max_iter=4)
        optimizer.step(lambda: closure_of(model, optimizer))
        return flat(model.encoder.parameters())

    def plain(model, optimizer):
        optimizer.zero_grad()
        mean = torch.stack(model.losses(model.encoder(inputs()))).mean()
        mean.backward()
        return mean

    def homogenized(model, optimizer):
        optimizer.zero_grad()
        losses, pipe = model.losses(model.encoder(inputs())), gradhomog.pipeline(text)
        if call == "backward":
            gradhomog.backward(losses, pipe, parameters=model.encoder)
            return torch.stack(losses).mean()
        mean = gradhomog.loss(losses, pipe, parameters=model.encoder)
        mean.backward()
        return mean

    if text == "none":
        torch.testing.assert_close(trained(homogenized), trained(plain))
    else:
        with pytest.warns(UserWarning, match=f"L-BFGS requires the gradient of one fixed loss, but that of {text}"):
            trained(homogenized)


@pytest.mark.parametrize("flat_parameter", [False, True])
def test_parameters_of_which_an_engine_stores_parts_are_refused_in_one_process(flat_parameter):
    model = Model()
    losses = losses_of(model)
    for index, parameter in enumerate(model.encoder.parameters()):  # as DeepSpeed and FSDP1, which are not started here
        setattr(parameter, *(("_is_flat_param", True) if flat_parameter else ("ds_id", index)))
        parameter.data = torch.empty(0)  # released after the forward pass
    with pytest.raises(OptionError, match=r"FSDP1|ZeRO-3 is not supported.*weights from losses"):
        summed(losses, "upgrad", model)


def test_weights_from_losses_are_those_of_combine_for_rows_of_the_identity():
    requirements = {one.name: gradhomog.pipeline(one.name).requirements for one in installed().list("homogenizers")}
    methods = [name for name, one in requirements.items() if one.weighing and one.statistics <= {"losses"}]
    assert {"static", "uw", "famo", "dwa", "rlw"} <= set(methods)
    for name in methods:
        model, by_hand = Model(), Model()
        pipe, other = gradhomog.pipeline(name), gradhomog.pipeline(name)
        for _ in range(3):
            gradhomog.loss(losses_of(model), pipe, parameters=model, reduction="sum").backward()
            losses = losses_of(by_hand)
            values = torch.stack([loss.detach() for loss in losses.values()])
            weights = len(losses) * other.combine(torch.eye(len(losses)).double(), values, domains=[*losses])
            sum(weight * loss for weight, loss in zip(weights, losses.values(), strict=True)).backward()
            torch.testing.assert_close(gradients(by_hand), gradients(model), rtol=1e-9, atol=1e-11, msg=name)
            with torch.no_grad():
                for one in (model, by_hand):
                    for parameter in one.parameters():
                        parameter -= 1e-3 * parameter.grad
