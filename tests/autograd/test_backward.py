"""`gradhomog.backward` compared with rows that are computed and combined by hand, and with TorchJD."""

import copy

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import NonfiniteError, OptionError

from .networks import Model, by_hand, flat, gradients, inputs, matrix

PIPELINES = ["none", "static(weights=[1, 0.5, 2])", "pcgrad", "mgda", "gradnorm", "pcgrad(order='fixed') + gradnorm"]
WAYS = ["given", "found", "features", "features found"]


def step(model, text, way, **options):
    z = model.encoder(inputs())
    parameters = model.encoder if "found" not in way else None
    features = z if "features" in way else None
    pipe = text if isinstance(text, gradhomog.Pipeline) else gradhomog.pipeline(text)
    return gradhomog.backward(model.losses(z), pipe, parameters=parameters, features=features, **options)


@pytest.mark.parametrize("text", PIPELINES)
@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_rows_combined_by_hand(text, way):
    model = Model()
    expected = by_hand(model, text, model.losses(model.encoder(inputs())))
    step(model, text, way)
    torch.testing.assert_close(gradients(model), expected)


@pytest.mark.parametrize("way", WAYS)
def test_weights_known_from_losses_take_one_backward_pass(way, monkeypatch):
    passes = []
    original = torch.autograd.grad
    shared = Model().encoder
    count = len(list(shared.parameters()))
    model = Model()
    encoder_ids = {id(p) for p in model.encoder.parameters()}

    def counting(outputs, inputs, *rest, **options):
        passes.append(sum(id(tensor) in encoder_ids for tensor in inputs) == count)
        return original(outputs, inputs, *rest, **options)

    monkeypatch.setattr(torch.autograd, "grad", counting)
    step(model, "static(weights=[1, 0.5, 2])", way)
    assert sum(passes) == 1
    passes.clear()
    step(model, "pcgrad", way)
    assert sum(passes) == 3


class ZeroWeights(gradhomog.Homogenizer):
    """Every task has the weight zero."""

    def mix(self, step):
        return torch.zeros(step.tasks, dtype=torch.float64)


def test_the_head_of_a_task_with_zero_weight_gets_the_gradient_of_its_loss():
    model = Model()
    expected = by_hand(model, "static(weights=[1, 0, 2])", model.losses(model.encoder(inputs())))
    step(model, "static(weights=[1, 0, 2])", "given")
    torch.testing.assert_close(gradients(model), expected)
    tiny = Model().float()
    z = tiny.encoder(inputs().float())
    losses = [1e-20 * head(z).square().mean() for head in tiny.heads]
    gradhomog.backward(losses, gradhomog.pipeline("static(weights=[1e-30, 1, 1])"), parameters=tiny.encoder)
    assert bool((tiny.heads[0].weight.grad != 0).all())
    model.zero_grad()
    step(model, gradhomog.pipeline([ZeroWeights()]), "given")
    torch.testing.assert_close(gradients(model)[4:], expected[4:])
    assert all(bool((gradient == 0).all()) for gradient in gradients(model)[:4])


def test_weighted_heads_are_those_of_the_weighted_mean_of_the_losses():
    model, reference = Model(), Model()
    step(model, "static(weights=[1, 0.5, 2], scale='paper')", "features", heads="weighted")
    weighted = zip([1, 0.5, 2], reference.losses(reference.encoder(inputs())), strict=True)
    sum(weight * loss for weight, loss in weighted).backward()
    torch.testing.assert_close(gradients(model), gradients(reference))


def test_gradients_are_added_to_existing_gradients():
    model, once = Model(), Model()
    step(once, "mgda", "given")
    step(model, "mgda", "given")
    step(model, "mgda", "given")
    torch.testing.assert_close(gradients(model), [2 * gradient for gradient in gradients(once)])


def test_a_parameter_that_two_of_three_losses_share_has_a_zero_in_the_third_row():
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(4, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(2))
    losses = [(first * second).sum(), (first - 2 * second).square().sum(), first.square().sum()]
    expected = gradhomog.pipeline("mgda").combine(matrix(losses, [first, second]))
    found = gradhomog.backward(losses, gradhomog.pipeline("mgda"))
    torch.testing.assert_close(torch.cat([first.grad, second.grad]), expected)
    assert found.direction.keys() == {"0", "1"}


def test_frozen_and_unused_parameters_are_not_changed():
    model = Model()
    model.encoder[0].requires_grad_(False)
    model.unused = nn.Linear(2, 2)
    z = model.encoder(inputs())
    expected = gradhomog.pipeline("pcgrad(order='fixed')")
    gradhomog.backward(model.losses(z), expected, parameters=[*model.encoder.parameters(), *model.unused.parameters()])
    assert model.encoder[0].weight.grad is None
    assert model.unused.weight.grad is None
    assert model.encoder[2].weight.grad is not None


def test_several_features_and_a_module_used_twice():
    model = Model(tasks=2)
    deep, wide = model.encoder, nn.Linear(5, 6).double()

    def losses(z, skip):
        return [head(view).square().mean() for head, view in zip(model.heads, (z + skip, z * skip), strict=True)]

    x = inputs()
    z, skip = deep[2](torch.tanh(deep[0](x))), wide(x) + wide(2 * x)
    shared = [*deep.parameters(), *wide.parameters()]
    gradhomog.backward(losses(z, skip), gradhomog.pipeline("mgda"), features=(z, skip), parameters=shared)
    rows = matrix(losses(deep[2](torch.tanh(deep[0](x))), wide(x) + wide(2 * x)), shared)
    torch.testing.assert_close(flat(p.grad for p in shared), gradhomog.pipeline("mgda").combine(rows))


def test_batch_statistics_are_updated_once_for_any_number_of_tasks():
    model, reference = Model(normalized=True), Model(normalized=True)
    step(model, "pcgrad", "features")
    reference.encoder(inputs())
    torch.testing.assert_close(dict(model.named_buffers()), dict(reference.named_buffers()))


def test_a_vector_of_losses_from_one_output():
    net = nn.Linear(3, 4).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    gradhomog.backward(net(x).square().mean(0), gradhomog.pipeline("none"))
    found = net.weight.grad.clone()
    net.zero_grad()
    net(x).square().mean(0).mean().backward()
    torch.testing.assert_close(found, net.weight.grad)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["none", "pcgrad", "mgda"])
@pytest.mark.parametrize("way", ["given", "features"])
def test_create_graph_gives_the_derivative_of_the_direction(text, way):
    if text == "pcgrad":
        text = "pcgrad(order='fixed')"

    def direction(weight):
        model = Model(tasks=2)
        tensors = dict(model.encoder.named_parameters()) | {"0.weight": weight}
        z = torch.func.functional_call(model.encoder, tensors, (inputs(),))
        result = gradhomog.backward(
            model.losses(z), gradhomog.pipeline(text), parameters=tensors, features=z if way == "features" else None,
            create_graph=True,
        )  # fmt: skip
        return torch.cat([part.flatten() for part in result.direction.values()])

    start = Model(tasks=2).encoder[0].weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda weight: direction(weight * 1.0), start)  # weight * 1.0 is not a leaf
    assert start.grad is None


def test_a_row_that_is_not_finite_raises_and_nothing_is_written():
    for text, way in [("pcgrad", "given"), ("none", "given"), ("none", "features"), ("gradnorm", "features")]:
        model = Model()
        pipe = gradhomog.pipeline(text)
        before = copy.deepcopy(pipe.state_dict())
        z = model.encoder(inputs())
        losses = model.losses(z)
        losses[1] = losses[1] + (z[0, 0] - z[0, 0].detach()).abs().sqrt()  # finite, with an infinite derivative
        with pytest.raises(NonfiniteError, match="not finite"):
            gradhomog.backward(losses, pipe, parameters=model.encoder, features=z if way == "features" else None)
        assert gradients(model) == [None] * len(gradients(model))
        assert repr(pipe.state_dict()) == repr(before)


@pytest.mark.parametrize("leaves", [True, False])
def test_a_loss_that_depends_on_shared_parameters_by_another_path_raises(leaves):
    model = Model()
    shared = {name: p if leaves else 1.0 * p for name, p in model.encoder.named_parameters()}
    z = torch.func.functional_call(model.encoder, shared, (inputs(),))
    losses = model.losses(z)
    losses[2] = losses[2] + shared["0.weight"].square().sum()
    with pytest.raises(OptionError, match="task 2 must depend on shared parameters only through `features`"):
        gradhomog.backward(losses, gradhomog.pipeline("pcgrad"), parameters=shared, features=z)


def changed(**options):
    """Replace arguments of a valid call."""
    return lambda model, z, call: call.update(options)


def with_losses(make):
    """Replace the losses by a function of the model and the features."""
    return lambda model, z, call: call.update(losses=make(model, z))


def narrow(dtype):
    def change(model, z, call):
        weight = torch.ones(3, requires_grad=True).to(dtype).detach().requires_grad_()
        total = (weight.abs() if dtype.is_complex else weight.float()).sum()
        call.update(losses=[total, 2 * total], parameters=[weight])

    return change


def with_features(**options):
    return lambda model, z, call: call.update(features=z, level="features", **options)


def with_views(tasks):
    def change(model, z, call):
        pipe = gradhomog.pipeline("rotograd")
        call.update(pipe=pipe, features=gradhomog.task_features(z, pipe, tasks=tasks) if tasks else z)

    return change


def test_complex_parameters_of_heads_and_frozen_ones_of_the_encoder_are_accepted():
    found = []
    for frozen in (nn.Parameter(torch.ones((), dtype=torch.complex128), requires_grad=False), torch.ones(())):
        model = Model(tasks=2)
        model.encoder.register_parameter("frozen", frozen if isinstance(frozen, nn.Parameter) else None)
        z, head = (model.encoder(inputs()) * frozen).real, nn.Parameter(torch.ones(6, dtype=torch.complex128))
        losses = [(z.to(torch.complex128) @ head).abs().mean(), model.losses(z)[1]]
        expected = torch.autograd.grad(losses[0], head, retain_graph=True)[0]
        gradhomog.backward(losses, gradhomog.pipeline("mgda"), parameters=model.encoder)
        torch.testing.assert_close(head.grad, expected)
        found.append([gradient for gradient in gradients(model) if gradient is not None])
    torch.testing.assert_close(*found)


INVALID = [
    (changed(losses=[]), "one loss per task; got none"),
    (changed(losses=None), "one loss per task; got NoneType"),
    (changed(losses=torch.tensor(1.0, requires_grad=True)), "one loss per task; got one scalar"),
    (with_losses(lambda m, z: [z.sum(), z]), r"task 1 must be a real scalar tensor; got shape \(7, 6\).* the mean"),
    (changed(losses=[None, None]), "all 2 losses are None.* Skip the batch"),
    (changed(losses={}.values()), "got dict_values. Pass the dict itself"),
    (
        changed(losses=[0]),
        "task 0 must be a real scalar tensor; got int. If the task is absent from this batch, pass None",
    ),
    (changed(losses=[torch.tensor(0)]), r"got shape \(\), torch.int64. If the task is absent .* pass None"),
    (changed(losses=["a"]), r"task 0 must be a real scalar tensor; got str\. Pass .* as a tensor\."),
    (changed(losses=[0.5]), r"got float\. Pass the loss as a tensor, not as a number \(`\.item"),
    (with_losses(lambda m, z: m.losses(z.detach())), r"depend on none of 0\.weight, 0\.bias"),
    (lambda m, z, c: c.update(losses=m.losses(z.detach()), parameters=None), "share a parameter; they share none"),
    (lambda m, z, c: c.update(losses=torch.stack(m.losses(z)), parameters=None), "stacked into one tensor"),
    (
        lambda m, z, c: c.update(losses=[c["losses"][0], None], parameters=None),
        "`parameters` is required, because only one loss of this batch has a graph",
    ),
    (lambda m, z, c: c.update(parameters=z.detach()), "got one tensor"),
    (lambda m, z, c: c.update(parameters=[z.detach()]), "requires grad; got 1 that do not"),
    (lambda m, z, c: c.update(parameters=torch.optim.SGD(m.parameters())), "got SGD. Pass the module .* An optimizer"),
    (changed(parameters=3), "got int. Pass the module"),
    (changed(parameters=iter(())), "`parameters` is empty. An iterator"),
    (narrow(torch.complex128), r"be real, of 16 bits or more; '0' is torch\.complex128\. .*torch\.view_as_real\(w\)"),
    (narrow(torch.float8_e4m3fn), "16 bits or more; '0' is torch.float8_e4m3fn. Pass .* master weights"),
    (lambda m, z, c: c.update(features=z.detach()), "got a tensor that does not require grad"),
    (changed(features=[], level="features"), "got an empty list"),
    (changed(level="features"), "level='features' requires features"),
    (with_features(parameters=Model().encoder), "depend on none of"),
    (with_features(per="tensor"), "it must be 'model' if level='features'"),
    (with_features(pipe=gradhomog.pipeline("tracked")), "tracked keeps rows from step to step.*level='parameters'"),
    (with_views(0), r"Create it by views = gradhomog\.task_features"),
    (with_views(2), "got 2 views and 3 losses"),
    (changed(level="layers"), "`level` must be"),
    (changed(heads="none"), "`heads` must be"),
    (changed(heads="weighted", pipe=gradhomog.pipeline("gradnorm + graddrop")), "graddrop replaces rows"),
    (changed(heads="weighted", create_graph=True, pipe=gradhomog.pipeline("imtl_g")), "cannot keep a graph"),
    (changed(memory=1.5), "`memory` must be 'auto', 'rows' or 'low'"),
    (changed(pipe="pcgrad"), "`pipe` must be a pipeline"),
    (changed(pipe=gradhomog.pipeline("moco"), parameters=None), "moco keeps rows by the parameters' names"),
    (changed(domains=["a"]), "`domains` must contain one name for each of the 3 tasks"),
    (changed(per="block"), "`per` must be"),
    (changed(per={1: "0.*", 2: "*"}), "`per` must map names of groups to patterns, all of them strings"),
    (changed(per={"first": "0.*"}), "must have a pattern for every shared parameter"),
    (
        changed(per={"all": "*", "none": "9.*"}),
        "selects no parameter: it matches none, or only parameters that an earlier pattern matches",
    ),
    (changed(per="tensor", parameters=None), "`per` keeps a state"),
    (
        lambda m, z, c: c.update(per="layer", parameters=nn.ParameterList(m.encoder.parameters())),
        "'0', '1', … of a list.*per='tensor'",
    ),
]


def by_loss(*arguments, **options):
    gradhomog.loss(*arguments, **options).backward()


@pytest.mark.parametrize(("change", "message"), INVALID)
@pytest.mark.parametrize("call", [gradhomog.backward, by_loss])
def test_an_invalid_call_raises_and_writes_nothing(call, change, message):
    model = Model()
    z = model.encoder(inputs())
    options = {"losses": model.losses(z), "pipe": gradhomog.pipeline("pcgrad"), "parameters": model.encoder}
    change(model, z, options)
    if call is by_loss and options.keys() & {"create_graph", "memory"}:
        pytest.skip("`loss` has no such option")
    losses, pipe = options.pop("losses"), options.pop("pipe")
    with pytest.raises(OptionError, match=message):
        call(losses, pipe, **options)
    assert gradients(model) == [None] * len(gradients(model))
    assert pipe == "pcgrad" or pipe.steps == 0
