"""`memory="low"`: passes in lockstep take the step of rows in memory, and need fewer gradients at a time."""

import pytest
import torch
import torch._functorch.config as functorch_config
import torch.compiler.config as compiler_config
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradhomog
from gradhomog.autograd import row_source
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
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(5, 6, num_layers=3, batch_first=True)

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
    "conv": (convolutional, (6, 3, 8, 8)),
    "lstm": (Recurrent, (4, 3, 5)),
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

    def features(self):
        with torch.random.fork_rng():
            torch.manual_seed(1)  # of dropout
            return self.encoder(self.x)

    def losses(self, separate=False):
        features = [self.features() for _ in self.heads] if separate else [self.features()] * len(self.heads)
        return [(head(z) - i).square().mean() for i, (head, z) in enumerate(zip(self.heads, features, strict=True))]


def steps(losses, name="mlp", dtype=torch.float64, text="mgda"):
    """Return report and gradients of a step with rows in memory, and of one with passes in lockstep."""
    found = []
    for memory in ("rows", "low"):
        net = Net(name, dtype=dtype)
        options = {"parameters": net.encoder, "memory": memory, "inspect": True}
        report = gradhomog.backward(losses(net), gradhomog.pipeline(text), **options)
        found.append((report, [parameter.grad for parameter in (*net.encoder.parameters(), *net.heads.parameters())]))
    return found


def assert_same_step(found, rtol=1e-10):
    """Compare with an absolute tolerance, because some gradients are zero but for rounding: biases before BatchNorm."""
    (rows, expected), (low, gradients) = found
    torch.testing.assert_close(low.gramian, rows.gramian, rtol=rtol, atol=rtol * float(rows.gramian.abs().max()))
    scale = max(float(gradient.abs().max()) for gradient in expected if gradient is not None)
    torch.testing.assert_close(gradients, expected, rtol=rtol, atol=rtol * scale)


@pytest.mark.slow_after_first
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_low_memory_does_not_change_a_step_of_any_network(name, separate):
    assert_same_step(steps(lambda net: net.losses(separate), name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_gramians_are_those_of_the_rows_to_rounding_in_other_dtypes(name, dtype):
    (rows, _), (low, _) = steps(Net.losses, name, dtype, "none")
    rtol = 10 * torch.finfo(dtype).eps
    torch.testing.assert_close(low.gramian, rows.gramian, rtol=rtol, atol=rtol * float(rows.gramian.abs().max()))


def doubled(module, inputs, output):
    output.register_hook(lambda gradient: 2 * gradient)


def with_linear_hooks(net):
    for layer in net.encoder[1:]:
        layer.register_forward_hook(doubled)
    for parameter in net.encoder.parameters():
        parameter.register_hook(lambda gradient: 3 * gradient)
    return net.losses()


def with_an_unused_parameter(net):
    net.encoder.register_parameter("unused", nn.Parameter(torch.ones(2)))
    return net.losses()


def with_a_parameter_of_a_task_of_weight_0(net):
    net.encoder.register_parameter("long", nn.Parameter(torch.ones(5).double()))
    first, *_ = net.losses()
    return [first, 100 * first + 100 * (net.x @ net.encoder.long).square().mean()]  # mgda: the shorter of aligned rows


def with_a_task_of_weight_0(change):
    """The first loss alone depends on the encoder's parameters with a gradient other than 0, or has the opposite."""

    def losses(net):
        z = net.features()
        return [net.heads[0](z).mean(), net.heads[1](change(z)).square().mean(), -net.heads[0](z).mean()]

    return losses


LOSSES = {
    "a task of weight 0 that alone uses a parameter": with_a_parameter_of_a_task_of_weight_0,
    "a task without shared parameters": with_a_task_of_weight_0(torch.Tensor.detach),
    "a task with a gradient of 0": with_a_task_of_weight_0(lambda z: z.clamp(max=-1e9)),
    "one loss": lambda net: net.losses()[:1],
    "losses of one tensor": lambda net: list(net.features().square().mean(0).unbind()),
    "a loss of the first layer": lambda net: [net.encoder[0](net.x).square().mean(), *net.losses()[1:]],
    "a loss of another loss": lambda net: [*net.losses(), net.losses()[0].exp()],
    "an unused parameter": with_an_unused_parameter,
    "linear hooks": with_linear_hooks,
}


@pytest.mark.parametrize("losses", LOSSES.values(), ids=LOSSES)
def test_low_memory_does_not_change_a_step_of_any_losses(losses):
    assert_same_step(steps(losses))


def test_a_task_of_weight_0_counts_as_a_user_of_its_parameters():
    net = Net("mlp")
    losses = [net.losses()[0], net.heads[1](net.features().detach()).mean()]
    gradhomog.backward(losses, gradhomog.pipeline("static(weights=[0, 1])"), parameters=net.encoder)
    assert all(not parameter.grad.any() for parameter in net.encoder.parameters())


def test_shared_tensors_may_have_a_graph_and_be_losses():
    directions = []
    for memory in ("rows", "low"):
        torch.manual_seed(0)
        weight, scale = nn.Parameter(torch.randn(4, 3).double()), nn.Parameter(torch.tensor(0.5).double())
        adapted = {"weight": weight - 0.1 * weight.square(), "scale": scale}
        first = (adapted["weight"] * scale).square().sum()
        losses = [first, (0.01 * first).exp() * scale, scale]
        step = gradhomog.backward(losses, gradhomog.pipeline("mgda"), parameters=adapted, memory=memory)
        directions.append(step.direction)
    torch.testing.assert_close(directions[1], directions[0], rtol=1e-9, atol=1e-12)


def test_hooks_of_a_module_receive_the_gradients_of_one_task():
    net, found = Net("mlp"), []
    net.encoder[2].register_full_backward_hook(lambda module, inputs, outputs: found.append((inputs[0], outputs[0])))
    losses = net.losses()
    for loss in losses:
        torch.autograd.grad(loss, net.encoder[0].weight, retain_graph=True)
    expected, found[:] = list(found), []
    gradhomog.backward(losses, gradhomog.pipeline("mgda"), parameters=net.encoder, memory="low")
    torch.testing.assert_close(found[:3], expected, rtol=0, atol=0)  # and then those of the direction


def test_checkpointed_layers_are_recomputed_once_per_task_and_for_the_direction():
    net, calls = Net("checkpoint"), []
    for layer in net.encoder.layers:
        layer.register_forward_hook(lambda *_: calls.append(1))
    losses = net.losses()
    calls.clear()
    gradhomog.backward(losses, gradhomog.pipeline("mgda"), parameters=net.encoder, memory="low")
    assert len(calls) <= (len(losses) + 1) * len(net.encoder.layers)


def test_low_memory_does_not_change_a_step_of_a_compiled_network():
    def losses(net):
        net.encoder.compile(backend="aot_eager")
        return net.losses()

    with functorch_config.patch(donated_buffer=True), compiler_config.patch(cache_key_tag=""):
        gradhomog.disable_donated_buffers()
        assert_same_step(steps(losses))
    torch.compiler.reset()


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("name", ["mlp", "sparse", "checkpoint", "transformer"])
def test_low_memory_keeps_no_rows(name, separate, monkeypatch):
    sizes, original = [], torch.autograd.grad

    def noting(outputs, leaves, *rest, **options):
        found = original(outputs, leaves, *rest, **options)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(torch.autograd, "grad", noting)
    net = Net(name)
    gradhomog.backward(net.losses(separate), gradhomog.pipeline("mgda"), parameters=net.encoder, memory="low")
    assert sizes[-1] == len(net.shared)  # the direction, in one pass
    assert max(sizes[:-1]) <= len(net.shared) / 2


def clipped(module, inputs, output):
    output.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))


@pytest.mark.parametrize("text", ["mgda", "gradnorm", "pcgrad(order='fixed')", "upgrad", "graddrop", "none"])
@pytest.mark.parametrize("through", [False, True])
def test_low_memory_does_not_change_a_step(text, through):
    found = []
    for memory in ("rows", "low"):
        model, pipe = Model(normalized=True), gradhomog.pipeline(text)
        z = model.encoder(inputs())
        options = {"features": z if through else None, "memory": memory, "inspect": True}
        step = gradhomog.backward(model.losses(z), pipe, parameters=model.encoder, **options)
        found.append([step.gramian, *gradients(model)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-12)


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


def test_low_memory_with_a_hook_that_clips_raises_and_writes_nothing():
    model = Model()
    model.encoder[0].register_forward_hook(clipped)
    model.backward("mgda", memory="rows")
    model.zero_grad()
    with pytest.raises(OptionError, match=r"is not linear .*: pass memory='rows'.*Nothing was written"):
        model.backward("mgda", memory="low")
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
