"""Regression tests: inputs that once gave wrong results or errors."""

import copy
from typing import ClassVar

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import NonfiniteError, OptionError
from gradhomog.rows import arithmetic
from gradhomog.step.member import Member

from .networks import Model, by_hand, flat, gradients, inputs, matrix


class InfiniteDerivative(torch.autograd.Function):
    """The identity, with an infinite derivative."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * torch.inf


def infinite_losses(model, z, task=1):
    losses = model.losses(z)
    losses[task] = losses[task] + InfiniteDerivative.apply(model.encoder[2].bias).sum()
    return losses


def test_two_parameters_with_one_name_raise_and_a_repeated_parameter_counts_once():
    first, second = nn.Linear(5, 6).double(), nn.Linear(5, 6).double()
    z = first(inputs()) + second(inputs())
    with pytest.raises(OptionError, match="two tensors with the name 'weight'"):
        gradhomog.backward(
            [z.square().mean(), z.mean()], gradhomog.pipeline("mgda"),
            parameters=[*first.named_parameters(), *second.named_parameters()],
        )  # fmt: skip
    model, reference = Model(), Model()
    for owner, shared in ((model, [*model.encoder.parameters()] * 2), (reference, [*reference.encoder.parameters()])):
        gradhomog.backward(owner.losses(owner.encoder(inputs())), gradhomog.pipeline("mgda"), parameters=shared)
    torch.testing.assert_close(gradients(model), gradients(reference))


@pytest.mark.slow_after_first
@pytest.mark.parametrize(
    "text", ["excess_mtl", "moco", "db_mtl", "trimmed_mean", "graddrop", "rotate_rows", "static + excess_mtl", "rlw"]
)
@pytest.mark.parametrize("options", [{"memory": "rows"}, {"memory": "low"}, {"per": "layer"}], ids=str)
def test_an_infinite_row_raises_before_it_is_read_and_changes_no_state(text, options):
    model, pipe = Model(), gradhomog.pipeline(text)
    for _ in range(2):
        model.backward(pipe, **options)
    before, written = repr(pipe.state_dict()), copy.deepcopy(gradients(model))
    losses = infinite_losses(model, model.encoder(inputs()))
    with pytest.raises(
        NonfiniteError, match=r"task 1 is not finite: its gradient is not finite w\.r\.t\. 2\.bias|gradient"
    ):
        gradhomog.backward(losses, pipe, parameters=model.encoder, **options)
    assert repr(pipe.state_dict()) == before
    torch.testing.assert_close(gradients(model), written)


@pytest.mark.parametrize("text", ["graddrop", "mgda", "none", "rlw", "gradnorm"])
@pytest.mark.parametrize("nonfinite", ["raise", "drop"])
def test_overflow_with_a_scaler_writes_infinity_to_all_gradients_and_changes_no_state(text, nonfinite):
    model, pipe = Model(), gradhomog.pipeline(text, nonfinite=nonfinite)
    before = repr(pipe.state_dict())
    scaler = torch.amp.GradScaler("cpu")
    step = gradhomog.backward(
        infinite_losses(model, model.encoder(inputs())), pipe, parameters=model.encoder, scaler=scaler
    )
    assert step.tasks == ()
    assert all(bool(gradient.isinf().all()) for gradient in gradients(model))
    assert repr(pipe.state_dict()) == before
    weight = model.encoder[0].weight.clone()
    scaler.step(torch.optim.SGD(model.parameters(), lr=0.1))
    scaler.update()
    assert scaler.get_scale() == 2.0**15
    assert torch.equal(model.encoder[0].weight, weight)


def test_feature_level_does_not_underflow_in_half_precision():
    def gradient(level, autocast):
        torch.manual_seed(0)
        encoder, heads = nn.Linear(8, 16), nn.ModuleList(nn.Linear(16, 1) for _ in range(2))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
            z = encoder(torch.randn(32, 8))
            losses = [1e-5 * head(z).float().square().mean() for head in heads]
        pipe = gradhomog.pipeline("none")
        gradhomog.backward(losses, pipe, parameters=encoder, features=z, level=level, scaler=scaler)
        return encoder.weight.grad

    exact = gradient("parameters", False)
    for level in ("parameters", "features"):
        error = (gradient(level, True) - exact).norm() / exact.norm()
        assert float(error) < 5e-3


@pytest.mark.parametrize(("text", "per"), [("mgda", "layer"), ("mgda", "model"), ("none", "model")])
def test_a_dropped_task_is_excluded_from_all_groups_and_its_head_has_no_gradient(text, per):
    model, reference = Model(), Model()
    losses, pipe = infinite_losses(model, model.encoder(inputs())), gradhomog.pipeline(text, nonfinite="drop")
    step = gradhomog.backward(losses, pipe, parameters=model.encoder, per=per)
    assert step.tasks == (0, 2)
    first, _, third = reference.losses(reference.encoder(inputs()))
    gradhomog.backward([first, third], gradhomog.pipeline(text), parameters=reference.encoder, per=per)
    assert model.heads[1].weight.grad is None
    torch.testing.assert_close(gradients(model), gradients(reference))


def test_feature_level_returns_the_direction_of_non_leaf_tensors_and_checks_that_it_is_finite():
    model = Model()
    adapted = {name: 1.0 * p for name, p in model.encoder.named_parameters()}
    z = torch.func.functional_call(model.encoder, adapted, (inputs(),))
    options = {"parameters": adapted, "features": z, "level": "features"}
    step = gradhomog.backward(model.losses(z), gradhomog.pipeline("mgda"), **options)
    assert step.direction.keys() == adapted.keys()
    z = model.encoder[2](InfiniteDerivative.apply(model.encoder[1](model.encoder[0](inputs()))))
    written = copy.deepcopy(gradients(model)[:4])
    with pytest.raises(NonfiniteError, match="of the shared parameters is not finite, although"):
        gradhomog.backward(
            model.losses(z), gradhomog.pipeline("mgda"), parameters=model.encoder, features=z, level="features"
        )
    torch.testing.assert_close(gradients(model)[:4], written)


def test_two_outputs_of_one_operation_are_distinguished():
    model = Model()
    q, k = model.encoder(inputs()).chunk(2, 1)
    with pytest.raises(OptionError, match="only through `features`"):
        gradhomog.backward(
            [q.square().mean() + k.square().mean(), q.mean()], gradhomog.pipeline("mgda"), parameters=model.encoder,
            features=q,
        )  # fmt: skip
    step = gradhomog.backward(
        [q.square().mean() + k.square().mean(), q.mean()], gradhomog.pipeline("mgda"), parameters=model.encoder,
        features=(q, k),
    )  # fmt: skip
    assert step.weights is not None


def test_repeated_features_count_once_and_dependent_features_raise():
    model, reference = Model(), Model()
    z = model.encoder(inputs())
    options = {"parameters": model.encoder, "level": "features"}
    gradhomog.backward(model.losses(z), gradhomog.pipeline("none"), features=(z, z), **options)
    expected = by_hand(reference, "none", reference.losses(reference.encoder(inputs())))
    torch.testing.assert_close(gradients(model), expected)
    first = model.encoder(inputs())
    second = first + model.encoder(inputs())
    losses = [(first * second).sum(), second.sum()]
    with pytest.raises(OptionError, match="may be computed from another entry"):
        gradhomog.backward(losses, gradhomog.pipeline("none"), features=(first, second), **options)


def test_inputs_that_require_grad_are_not_shared_parameters():
    model = Model()
    x = inputs().requires_grad_()
    step = gradhomog.backward(model.losses(model.encoder(x)), gradhomog.pipeline("mgda"))
    assert len(step.direction) == 4
    (expected,) = torch.autograd.grad(sum(model.losses(model.encoder(x))), x)
    torch.testing.assert_close(x.grad, expected)  # as for any other leaf that the losses depend on


def test_batches_may_name_their_tasks_in_any_order():
    model, reference = Model(tasks=2), Model(tasks=2)
    a, b = model.losses(model.encoder(inputs()))
    c, d = model.losses(model.encoder(inputs(seed=5)))
    with gradhomog.accumulated(gradhomog.pipeline("mgda"), parameters=model.encoder) as several:
        several.add({"a": a, "b": b})
        several.add({"b": d, "a": c})
    first, second = (reference.losses(reference.encoder(inputs(seed=seed))) for seed in (2, 5))
    summed = [sum(pair) for pair in zip(first, second, strict=True)]
    torch.testing.assert_close(gradients(model), by_hand(reference, "mgda", summed))


def test_views_have_integer_indices_and_must_have_the_domains_of_the_losses():
    model, pipe = Model(), gradhomog.pipeline("rotograd")
    z = model.encoder(inputs())
    views = gradhomog.task_features(z, pipe, tasks=3, domains=["a", "b", "c"])
    with pytest.raises(TypeError):
        _ = views[0:2]
    losses = dict(zip("bca", model.losses(torch.stack(list(views))), strict=True))
    with pytest.raises(OptionError, match="must have the same domains as the losses"):
        gradhomog.backward(losses, pipe, parameters=model.encoder, features=views)


def test_a_function_with_an_attribute_variable_is_not_a_leaf():
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.variable = torch.ones(3)
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient

    model, reference = Model(), Model()
    z = Keeps.apply(model.encoder(inputs()))
    gradhomog.backward(model.losses(z), gradhomog.pipeline("mgda"))
    gradhomog.backward(reference.losses(reference.encoder(inputs())), gradhomog.pipeline("mgda"))
    torch.testing.assert_close(gradients(model), gradients(reference))


@pytest.mark.parametrize("form", [torch.stack, lambda losses: [loss.reshape(1) for loss in losses]])
def test_a_call_with_disabled_gradients_uses_the_existing_graphs(form):
    model, reference = Model(), Model()
    losses = form(model.losses(model.encoder(inputs())))
    with torch.no_grad():
        gradhomog.backward(losses, gradhomog.pipeline("mgda"), parameters=model.encoder)
    torch.testing.assert_close(
        gradients(model), by_hand(reference, "mgda", reference.losses(reference.encoder(inputs())))
    )


def test_a_zero_row_requires_no_product_in_float64(monkeypatch):
    rows = torch.ones(3, 1000)
    rows[1] = 0
    dtypes = []
    original = arithmetic.gramian
    monkeypatch.setattr(arithmetic, "gramian", lambda block: dtypes.append(block.dtype) or original(block))
    gradhomog.pipeline("pcgrad").combine(rows)
    assert dtypes == [torch.float32]


def test_the_derivative_through_a_weight_of_zero_is_kept():
    class Share(gradhomog.Homogenizer):
        def mix(self, step):
            return step.losses - step.losses.detach()

    spec = gradhomog.HomogenizerSpec(Share, "", traits={"differentiable"}, needs={"losses"})
    w = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    found = []
    for chunks in (False, True):
        member = Member(Share(), "share", {}, None, spec)
        pipe = gradhomog.Pipeline([member], nonfinite="drop" if chunks else "raise")  # rows, or one pass
        adapted = 1.0 * w
        step = gradhomog.backward(
            [adapted.square().sum(), adapted.sum()], pipe, parameters=[adapted], create_graph=True
        )
        found.append(torch.autograd.grad(step.direction["0"].sum(), w)[0])
    torch.testing.assert_close(found[0], found[1])
    assert bool((found[0] != 0).all())


def test_norms_and_cosines_are_available_if_they_are_read_or_inspected():
    for text, inspect, available in (("static", False, False), ("static", True, True), ("mgda", False, True)):
        model = Model()
        z = model.encoder(inputs())
        pipe = gradhomog.pipeline(text)
        report = gradhomog.backward(model.losses(z), pipe, parameters=model.encoder, features=z, inspect=inspect)
        assert (report.norms is not None) == (report.cosines is not None) == available


def test_the_gradient_of_a_parameter_with_gaps_and_permuted_axes_is_correct():
    weight = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))[:, ::2].t().detach().requires_grad_()
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    step = gradhomog.backward(
        [(weight * x[0]).sum(), (weight * x[1]).sum()], gradhomog.pipeline("pcgrad"), parameters=[weight]
    )
    torch.testing.assert_close(step.direction["0"], gradhomog.pipeline("pcgrad").combine({"0": x})["0"])
    torch.testing.assert_close(weight.grad, step.direction["0"])


def test_a_half_precision_head_of_small_weight_keeps_its_gradient():
    torch.manual_seed(0)
    encoder, heads = nn.Linear(8, 8).half(), nn.ModuleList(nn.Linear(8, 1).half() for _ in range(2))
    z = encoder(torch.randn(4, 8).half())
    losses = [head(z).float().square().mean() * 0.05 for head in heads]
    expected = torch.autograd.grad(losses[0], heads[0].weight, retain_graph=True)[0]
    gradhomog.backward(losses, gradhomog.pipeline("static(weights=[1e-5, 1.99999])"), parameters=encoder)
    torch.testing.assert_close(heads[0].weight.grad, expected)


def test_create_graph_keeps_the_graph_when_gradients_are_added_to_existing_ones():
    w, heads = torch.ones(3, requires_grad=True), [torch.ones(1, requires_grad=True) for _ in range(2)]
    for head in heads:
        head.grad = torch.zeros(1)
    losses = [w.sum() + heads[0].pow(3).sum(), 2 * w.sum() + heads[1].pow(3).sum()]
    gradhomog.backward(losses, gradhomog.pipeline("none"), parameters=[w], create_graph=True)
    assert all(head.grad.requires_grad for head in heads)


def test_debug_works_with_methods_that_override_only_update():
    class Count(gradhomog.Homogenizer):
        state_names = ("count",)

        def __init__(self):
            self.count = 0.0

        def update(self, step):
            return {"count": self.count + 1}

    model, count = Model(), Count()
    z = model.encoder(inputs())
    pipe = gradhomog.pipeline([count, "uw", "pcgrad"], debug=True)
    gradhomog.backward(model.losses(z), pipe, parameters=model.encoder, features=z)
    assert count.count == 1
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_norms_that_are_read_only_in_measured_are_computed_before_the_graph_is_freed():
    class Measure(gradhomog.Homogenizer):
        needs = frozenset({"norms"})

        def measured(self, step):
            return {"norm": step.norms().tolist()}

    model = Model()
    step = model.backward(gradhomog.pipeline([Measure()]))
    assert len(step.measured["Measure"]["norm"]) == 3


def test_an_undeclared_homogenizer_that_reads_rows_in_update_works_with_low_memory():
    class Count(gradhomog.Homogenizer):
        state_names = ("blocks",)

        def __init__(self):
            self.blocks = 0

        def mix(self, step):
            return 1 / step.norms()

        def update(self, step):
            return {"blocks": len(step.jacobian.materialize())}

    model, count = Model(), Count()
    model.backward(gradhomog.pipeline([count]), memory="low")
    assert count.blocks == 4


def test_a_method_that_returns_nan_from_finite_losses_is_named_even_after_one_pass():
    class Nan(gradhomog.Homogenizer):
        needs = frozenset({"losses"})

        def mix(self, step):
            return step.losses * torch.nan

    model = Model()
    with pytest.raises(gradhomog.PluginRunError, match="homogenizer Nan returned NaN or infinity from `mix`"):
        model.backward(gradhomog.pipeline([Nan()]))


def test_an_infinite_task_is_named_by_its_slot_if_another_one_is_absent():
    w = torch.ones(3, requires_grad=True)
    with pytest.raises(NonfiniteError, match="task 2 is not finite"):
        gradhomog.backward([None, w.sum(), w.sum() * torch.nan], gradhomog.pipeline("pcgrad"), parameters=[w])


def test_a_report_that_raises_does_not_change_state_and_gradients():
    model, pipe = Model(), gradhomog.pipeline("gradnorm")

    def report(_):
        raise ValueError("full")

    losses = model.losses(model.encoder(inputs()))
    total = gradhomog.loss(losses, pipe, parameters=model.encoder, report=report)
    with pytest.raises(ValueError, match="full"):
        total.backward()
    assert pipe.steps == 0
    assert all(parameter.grad is None for parameter in model.parameters())


class Labelled(torch.Tensor):
    """A subclass of Tensor, as collocation points with labels are; operations on it return it."""


@pytest.mark.parametrize("text", ["none", "upgrad", "graddrop"])
def test_losses_of_inputs_in_a_tensor_subclass_give_plain_gradients(text):
    gradients = []
    for subclass in (torch.Tensor, Labelled):
        torch.manual_seed(0)
        net = nn.Linear(3, 1, dtype=torch.float64)
        points = [torch.eye(3, dtype=torch.float64).as_subclass(subclass).requires_grad_() for _ in range(2)]
        losses = [(net(x) - i).square().mean().as_subclass(torch.Tensor) for i, x in enumerate(points)]
        gradhomog.backward(losses, gradhomog.pipeline(text), parameters=net)
        assert all(type(parameter.grad) is torch.Tensor for parameter in net.parameters())
        gradients.append(net.weight.grad)
    torch.testing.assert_close(*gradients)


class _PassesAndKeepsItsGradient(torch.autograd.Function):
    kept: ClassVar[list[torch.Tensor]] = []

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        _PassesAndKeepsItsGradient.kept.append(grad)
        return grad


@pytest.mark.parametrize("memory", ["rows", "low"])
@pytest.mark.parametrize("are_heads", [False, True])
@pytest.mark.parametrize("name", ["none", "pcgrad"])
def test_grad_shares_memory_neither_with_tensors_of_a_function_or_hook_nor_with_another_grad(name, are_heads, memory):
    constant, shared, stored = torch.tensor([1.0, 2.0]), torch.ones(2, requires_grad=True), []
    leaves = first, second, third, fourth = [torch.zeros(2, requires_grad=True) for _ in range(4)]
    fourth.register_hook(lambda grad: stored.append(grad))
    kept = _PassesAndKeepsItsGradient.kept
    kept.clear()
    changed = _PassesAndKeepsItsGradient.apply(first) + fourth
    losses = [(changed * constant * shared).sum(), ((second + third.view(1, 2)) * constant * shared).sum()]
    parameters = [shared] if are_heads else leaves
    gradhomog.backward(losses, gradhomog.pipeline(name), parameters=parameters, memory=memory)
    before = [grad.clone() for grad in (*kept, *stored)]
    share = 1 if are_heads else 0.5
    for leaf in leaves:
        assert leaf.grad.tolist() == [share, 2 * share]
        leaf.grad.add_(1)
        assert leaf.grad.tolist() == [share + 1, 2 * share + 1]
    assert before
    assert all(map(torch.equal, (*kept, *stored), before))


@pytest.mark.parametrize("name", ["none", "famo"])
def test_one_pass_writes_the_gradient_that_autograd_returned_without_a_copy(name):
    net, returned = nn.Linear(64, 64), []
    pipe, losses = gradhomog.pipeline(name), list(net(torch.randn(5, 64)).square().mean(0)[:2])
    net.weight.register_hook(lambda grad: returned.append(grad.data_ptr()))
    gradhomog.backward(losses, pipe, parameters=net)
    assert returned == [net.weight.grad.data_ptr()]


@pytest.mark.parametrize("examples", [64, [1, 5]])
def test_numbers_of_examples_have_no_effect_in_one_process(examples):
    def gradient(group):
        torch.manual_seed(0)
        net = nn.Linear(3, 2)
        losses = net(torch.randn(4, 3)).square().mean(0)
        gradhomog.backward(losses, gradhomog.pipeline("pcgrad"), parameters=net, group=group)
        return net.weight.grad

    torch.testing.assert_close(gradient(gradhomog.Ranks("batch", examples=examples)), gradient(None))


def test_discovered_parameters_have_one_order_on_which_their_names_and_random_draws_depend():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5))
    step = gradhomog.backward(list(net(torch.ones(2, 3)).square().mean(0)), gradhomog.pipeline("none"))
    assert [tuple(part.shape) for part in step.direction.values()] == [(5, 4), (4, 3), (4,), (5,)]


@pytest.mark.parametrize("text", ["mgda", "none", "graddrop"])
def test_gradients_have_the_strides_of_their_parameters(text):
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(72, 2)).to(memory_format=torch.channels_last)
    parameters = [*net.parameters(), other := nn.Parameter(torch.randn(5, 4).t())]
    first, second = net(torch.randn(2, 3, 5, 5)).unbind(1)
    losses = [first.square().mean() + other.sum(), (second - 1).square().mean() + other.square().sum()]
    rows = matrix(losses, parameters)
    gradhomog.backward(losses, gradhomog.pipeline(text), parameters=parameters)
    assert [parameter.grad.stride() for parameter in parameters] == [parameter.stride() for parameter in parameters]
    if text == "mgda":
        expected = gradhomog.pipeline("mgda").combine(rows)
        torch.testing.assert_close(flat(parameter.grad for parameter in parameters), expected)
