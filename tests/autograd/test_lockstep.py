"""Gramians of passes in lockstep are equal to those of the rows, and need fewer gradients at a time."""

import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradhomog
from gradhomog.autograd import row_source
from gradhomog.autograd.lockstep import Lockstep, check_direction
from gradhomog.errors import NonfiniteError, OptionError

from .networks import Model, gradients, inputs


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Transformer(nn.Module):
    """Encoder layers; the embedding is also the output layer, unless it is sparse."""

    def __init__(self, sparse=False, checkpointed=False, dropout=0.1, layers=4):
        super().__init__()
        self.embedding = nn.Embedding(11, 8, sparse=sparse)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True, norm_first=True) for _ in range(layers)
        )
        self.tied, self.checkpointed = not sparse, checkpointed

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x @ self.embedding.weight.T if self.tied else x


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn = kind(5, 6, num_layers=3, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0][:, -1]


class Cell(nn.Module):
    """One layer, applied at each time step."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(5, 6)

    def forward(self, x):
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state


class Splits(nn.Module):
    """Nodes with several outputs, some of which are not used."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(5, 8), nn.Linear(4, 6), nn.Linear(2, 6)

    def forward(self, x):
        left, right = self.first(x).chunk(2, dim=1)
        parts = self.second(left.tanh()).split(2, dim=1)
        return self.third(parts[0] * parts[2]) + right.unbind(1)[1][:, None]


class Skips(nn.Module):
    """Every layer reads the output of the first, as in a U-Net."""

    def __init__(self):
        super().__init__()
        self.first, self.layers = nn.Linear(5, 6), nn.ModuleList(nn.Linear(12, 6) for _ in range(4))

    def forward(self, x):
        first = x = self.first(x)
        for layer in self.layers:
            x = layer(torch.cat([first, x], dim=1)).tanh()
        return x


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x.sin(), 3 * x

    @staticmethod
    def backward(ctx, first, second):
        (x,) = ctx.saved_tensors
        return 2 * first * x.cos() + 3 * second


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.Linear(5, 6), nn.Linear(6, 6)

    def forward(self, x):
        first, second = Doubled.apply(self.before(x))
        return self.after(first * second)


def mlp(layers=6):
    return nn.Sequential(nn.Linear(5, 5), *(nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(layers)))


def convolutional():
    layers = [
        nn.Sequential(nn.Conv2d(c, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)) for c in (3, 4, 4)
    ]
    return nn.Sequential(*layers, Residual(nn.Conv2d(4, 4, 1)), nn.Flatten())


NETWORKS = {
    "mlp": (mlp, (7, 5)),
    "residual": (lambda: nn.Sequential(*(Residual(mlp(2)) for _ in range(4))), (7, 5)),
    "conv": (convolutional, (6, 3, 8, 8)),
    "rnn": (lambda: Recurrent(nn.RNN), (4, 3, 5)),
    "lstm": (lambda: Recurrent(nn.LSTM), (4, 3, 5)),
    "cell": (Cell, (4, 3, 5)),
    "transformer": (Transformer, (4, 3)),
    "sparse": (lambda: Transformer(sparse=True), (4, 3)),
    "checkpoint": (lambda: Transformer(checkpointed=True), (4, 3)),
    "splits": (Splits, (7, 5)),
    "skips": (Skips, (7, 5)),
    "custom": (Custom, (7, 5)),
}  # fmt: skip


class Net:
    """A network in float64 with one head per task; task 0 adds a loss that does not depend on the last parameter."""

    def __init__(self, name, tasks=3, dtype=torch.float64):
        build, shape = NETWORKS[name]
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.encoder = build().to(dtype)
            integers = isinstance(self.encoder, Transformer)
            self.x = torch.randint(0, 11, shape) if integers else torch.randn(shape).to(dtype)
            width = self.features().shape[-1]
            self.heads = nn.ModuleList(nn.Linear(width, 2) for _ in range(tasks)).to(dtype)
        self.shared = dict(self.encoder.named_parameters())
        self.unshared = [list(head.parameters()) for head in self.heads]

    def features(self):
        with torch.random.fork_rng():
            torch.manual_seed(1)  # of dropout
            return self.encoder(self.x)

    def losses(self, separate=False):
        features = [self.features() for _ in self.heads] if separate else [self.features()] * len(self.heads)
        return [(head(z) - i).square().mean() for i, (head, z) in enumerate(zip(self.heads, features, strict=True))]


def rows_of(outputs, leaves, output_grads):
    """Return the gradients, zero where there is none, of one pass per task."""
    rows = []
    for some, grads in zip(outputs, output_grads, strict=True):
        row = torch.autograd.grad(some, leaves, grads, retain_graph=True, allow_unused=True)
        rows.append(
            [like.detach() * 0 if part is None else part.to_dense() for part, like in zip(row, leaves, strict=True)]
        )
    return rows


def gramians_of(rows, names):
    """Return the inner products of the rows in float64, by name."""
    matrices = {name: torch.stack([row[index].flatten() for row in rows]).double() for index, name in enumerate(names)}
    return {name: matrix @ matrix.T for name, matrix in matrices.items()}


def check_gramians(found, expected, rtol):
    """Compare with an absolute tolerance, because some gradients are zero but for rounding: biases before BatchNorm."""
    scale = max(float(gramian.abs().max()) for gramian in expected.values())
    for name, gramian in expected.items():
        if name in found:
            torch.testing.assert_close(found[name], gramian, rtol=rtol, atol=rtol * scale)
        else:
            assert not gramian.any()


def of_losses(losses, shared, unshared):
    """Return lockstep passes and their result, for losses."""
    lockstep = Lockstep([[loss] for loss in losses], shared, unshared)
    return lockstep, *lockstep.gramians([[torch.ones_like(loss)] for loss in losses])


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_gramians_and_gradients_of_heads_are_those_of_the_rows(name, separate):
    net = Net(name)
    losses = net.losses(separate)
    _, gramians, heads = of_losses(losses, net.shared, net.unshared)
    ones = [[torch.ones_like(loss)] for loss in losses]
    expected = gramians_of(rows_of([[x] for x in losses], list(net.shared.values()), ones), net.shared)
    check_gramians(gramians, expected, 1e-12)
    for loss, leaves, found in zip(losses, net.unshared, heads, strict=True):
        expected = torch.autograd.grad(loss, leaves, retain_graph=True)
        torch.testing.assert_close(found, list(expected), rtol=1e-12, atol=0)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("name", ["mlp", "sparse", "checkpoint", "transformer"])
def test_networks_with_layers_in_sequence_need_few_gradients_at_a_time(name, separate):
    net = Net(name)
    lockstep, *_ = of_losses(net.losses(separate), net.shared, net.unshared)
    assert len(lockstep.segments) >= 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_gramians_are_those_of_the_rows_to_rounding_in_other_dtypes(name, dtype):
    net = Net(name, dtype=dtype)
    losses = net.losses()
    _, gramians, _ = of_losses(losses, net.shared, net.unshared)
    rows = rows_of([[x] for x in losses], list(net.shared.values()), [[torch.ones_like(x)] for x in losses])
    check_gramians(gramians, gramians_of(rows, net.shared), 10 * torch.finfo(dtype).eps)


def test_rows_may_begin_at_features_with_a_gradient_per_task():
    net = Net("mlp")
    features = [net.encoder[:3](net.x), net.encoder[3:](net.encoder[:3](net.x))]
    grads = [[torch.randn_like(part) for part in features] for _ in range(4)]
    lockstep = Lockstep([features] * 4, net.shared, [()] * 4)
    gramians, heads = lockstep.gramians(grads)
    check_gramians(gramians, gramians_of(rows_of([features] * 4, list(net.shared.values()), grads), net.shared), 1e-12)
    assert heads == [[]] * 4


def test_losses_that_do_not_depend_on_some_parameters_have_zero_rows_there():
    net = Net("mlp")
    losses = [net.encoder[0](net.x).square().mean(), *net.losses()[1:]]
    _, gramians, _ = of_losses(losses, {**net.shared, "unused": nn.Parameter(torch.ones(2))}, [[], *net.unshared[1:]])
    assert "unused" not in gramians
    assert not gramians["3.0.weight"][0].any()
    rows = rows_of([[x] for x in losses], list(net.shared.values()), [[torch.ones_like(x)] for x in losses])
    check_gramians(gramians, gramians_of(rows, net.shared), 1e-12)


@pytest.mark.parametrize("stacked", [False, True])
def test_one_loss_and_losses_of_one_tensor(stacked):
    net = Net("mlp")
    losses = list(net.features().square().mean(0).unbind()) if stacked else net.losses()[:1]
    _, gramians, _ = of_losses(losses, net.shared, [[] for _ in losses])
    rows = rows_of([[x] for x in losses], list(net.shared.values()), [[torch.ones_like(x)] for x in losses])
    check_gramians(gramians, gramians_of(rows, net.shared), 1e-12)


def test_shared_tensors_with_a_graph_losses_that_are_shared_and_losses_of_other_losses():
    weight, scale = nn.Parameter(torch.randn(4, 3).double()), nn.Parameter(torch.tensor(0.5).double())
    adapted = {"weight": weight - 0.1 * weight.square(), "scale": scale}
    first = (adapted["weight"] * scale).square().sum()
    losses = [first, first.exp() * scale, scale]
    _, gramians, _ = of_losses(losses, adapted, [()] * 3)
    rows = rows_of([[x] for x in losses], list(adapted.values()), [[torch.ones_like(x)] for x in losses])
    check_gramians(gramians, gramians_of(rows, adapted), 1e-12)


def doubled(module, inputs, output):
    output.register_hook(lambda gradient: 2 * gradient)


def clipped(module, inputs, output):
    output.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))


def test_linear_hooks_of_tensors_and_parameters_act_once():
    net = Net("mlp")
    for layer in net.encoder[1:]:
        layer.register_forward_hook(doubled)
    for parameter in net.encoder.parameters():
        parameter.register_hook(lambda gradient: 3 * gradient)
    losses = net.losses()
    lockstep, gramians, _ = of_losses(losses, net.shared, net.unshared)
    assert len(lockstep.segments) > 3
    rows = rows_of([[x] for x in losses], list(net.shared.values()), [[torch.ones_like(x)] for x in losses])
    check_gramians(gramians, gramians_of(rows, net.shared), 1e-12)


def test_hooks_of_a_module_receive_the_gradients_of_one_task():
    net, found = Net("mlp"), []
    net.encoder[2].register_full_backward_hook(lambda module, inputs, outputs: found.append((inputs[0], outputs[0])))
    losses = net.losses()
    of_losses(losses, net.shared, net.unshared)
    received, found[:] = list(found), []
    for loss in losses:
        torch.autograd.grad(loss, net.encoder[0].weight, retain_graph=True)
    torch.testing.assert_close(received, found, rtol=0, atol=0)


def direction_of(losses, weights, shared):
    total = sum(weight * loss for weight, loss in zip(weights.tolist(), losses, strict=True))
    return dict(zip(shared, torch.autograd.grad(total, list(shared.values())), strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["conv", "transformer", "checkpoint"])
def test_a_direction_of_one_pass_agrees_with_the_gramians_also_where_gradients_are_only_rounding(name, dtype):
    net, weights = Net(name, dtype=dtype), torch.tensor([0.5, -2.0, 1.0], dtype=torch.float64)
    losses = net.losses()
    _, gramians, _ = of_losses(losses, net.shared, net.unshared)
    check_direction(direction_of(losses, weights, net.shared), weights, gramians, torch.finfo(dtype).eps)


def test_a_hook_that_clips_gradients_raises_for_the_first_parameter_that_it_changes():
    net, weights = Net("mlp"), torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    net.encoder[2][0].register_forward_hook(clipped)
    losses = net.losses()
    _, gramians, _ = of_losses(losses, net.shared, net.unshared)
    with pytest.raises(OptionError, match=r"the gradient of '\d.*' in one backward pass"):
        check_direction(direction_of(losses, weights, net.shared), weights, gramians, 2**-52)


def test_checkpointed_layers_are_recomputed_once_per_task():
    net, calls = Net("checkpoint"), []
    for layer in net.encoder.layers:
        layer.register_forward_hook(lambda *_: calls.append(1))
    losses = net.losses()
    calls.clear()
    of_losses(losses, net.shared, net.unshared)
    assert len(calls) <= len(losses) * len(net.encoder.layers)


def test_compiled_networks_are_one_segment_with_the_gramians_of_the_rows():
    net = Net("mlp")
    net.encoder.compile(backend="aot_eager")
    losses = net.losses()
    _, gramians, _ = of_losses(losses, net.shared, net.unshared)
    rows = rows_of([[x] for x in losses], list(net.shared.values()), [[torch.ones_like(x)] for x in losses])
    check_gramians(gramians, gramians_of(rows, net.shared), 1e-12)


def test_peaks_count_gradients_at_cuts():
    """Large features before small weights: a cut there would hold more than the rows."""
    wide, small = nn.Linear(1, 1), nn.Linear(1, 1)
    losses = [(small(wide(torch.ones(1000, 1)).tanh()) * scale).square().mean() for scale in (1, 2)]
    lockstep, *_ = of_losses(losses, {"wide": wide.weight, "small": small.weight}, [(), ()])
    assert len(lockstep.segments) == 1
    assert math.isclose(lockstep.peak, 2 * 2 * 4)


def backward_of(text, memory, through=False, clip=False, **options):
    """Return a step, its gradients, and the model."""
    model = Model(normalized=True)
    if clip:
        model.encoder[0].register_forward_hook(clipped)
    features = model.encoder(inputs())
    step = gradhomog.backward(
        model.losses(features), gradhomog.pipeline(text), parameters=model.encoder,
        features=features if through else None, memory=memory, **options,
    )  # fmt: skip
    return step, gradients(model), model


@pytest.mark.parametrize("text", ["mgda", "gradnorm", "pcgrad(order='fixed')", "upgrad", "graddrop", "none"])
@pytest.mark.parametrize("through", [False, True])
def test_low_memory_does_not_change_a_step(text, through):
    expected, found = (backward_of(text, memory, through, inspect=True) for memory in ("rows", "low"))
    torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found[0].gramian, expected[0].gramian, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("heads", ["own", "weighted"])
def test_low_memory_does_not_change_the_gradients_of_heads_that_losses_share(heads):
    found = []
    for memory in ("rows", "low"):
        model = Model(tasks=2)
        features = model.encoder(inputs())
        losses = model.losses(features)
        losses = [losses[0] + losses[1], losses[1]]  # both depend on the second head
        pipe = gradhomog.pipeline("mgda")
        gradhomog.backward(losses, pipe, parameters=model.encoder, memory=memory, heads=heads)
        found.append(gradients(model))
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-12)


def test_low_memory_keeps_no_rows(monkeypatch):
    sizes, original = [], torch.autograd.grad

    def noting(outputs, leaves, *rest, **options):
        found = original(outputs, leaves, *rest, **options)
        sizes.append([tuple(gradient.shape) for gradient in found])
        return found

    monkeypatch.setattr(torch.autograd, "grad", noting)
    net = Net("mlp")
    gradhomog.backward(net.losses(), gradhomog.pipeline("mgda"), parameters=net.encoder, memory="low")
    assert len(sizes[-1]) == len(net.shared)  # the direction, in one pass
    assert max(map(len, sizes[:-1])) < len(net.shared)


def test_low_memory_with_a_hook_that_clips_raises_and_writes_nothing():
    backward_of("mgda", "rows", clip=True)
    model = Model()
    model.encoder[0].register_forward_hook(clipped)
    with pytest.raises(OptionError, match=r"is not linear .* Pass memory='rows'\. Nothing was written\."):
        gradhomog.backward(
            model.losses(model.encoder(inputs())), gradhomog.pipeline("mgda"), parameters=model.encoder, memory="low"
        )
    assert gradients(model) == [None] * len(gradients(model))


def test_low_memory_names_the_task_that_is_not_finite():
    model = Model()
    losses = model.losses(model.encoder(inputs()))
    losses[1] = losses[1] + (model.encoder[0].bias * 0).sqrt().sum()
    with pytest.raises(NonfiniteError, match=r"task 1 is not finite: its gradient is not finite w\.r\.t\. 0\.bias"):
        gradhomog.backward(losses, gradhomog.pipeline("mgda"), parameters=model.encoder, memory="low")


def test_low_memory_is_chosen_and_reported_if_rows_fill_half_of_the_free_memory(monkeypatch, caplog):
    expected = Net("mlp")
    gradhomog.backward(expected.losses(), gradhomog.pipeline("mgda"), parameters=expected.encoder)
    assert not caplog.records
    size = 3 * sum(parameter.numel() * 8 for parameter in expected.shared.values())
    assert row_source._free_memory(torch.device("cpu"), size) > 2**27  # of any machine that runs this
    for free, reports in ((2 * size, 0), (2 * size - 2, 1)):
        monkeypatch.setattr(row_source, "_free_memory", lambda device, needed, free=free: free)
        net = Net("mlp")
        row_source._log_peaks.cache_clear()
        with caplog.at_level("INFO", logger="gradhomog"):
            gradhomog.backward(net.losses(), gradhomog.pipeline("mgda"), parameters=net.encoder)
        assert len(caplog.records) == reports
        torch.testing.assert_close(
            [p.grad for p in net.encoder.parameters()], [p.grad for p in expected.encoder.parameters()]
        )
    assert "the gradients of 3 tasks take 0 MiB" in caplog.text
