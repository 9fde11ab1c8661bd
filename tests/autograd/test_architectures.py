"""Rows of many small networks are those of one `torch.autograd.grad` per loss, in memory and without rows."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import gradhomog
from gradhomog import Homogenizer

from .networks import matrix

CASES = {}


def case(*build, shape=(6, 5), integers=0):
    """Register a function from input and modules to losses, under its name; `build` creates the modules."""

    def register(losses):
        CASES[losses.__name__.replace("_", " ")] = (losses, build, shape, integers)
        return losses

    return register


def three(z):
    """Three losses of one output that conflict."""
    z = z.flatten(1)
    return [z.square().mean(), z.sin().sum() - z.sum(), (z[:, 0] - 1).abs().exp().mean()]


def parameter(*shape):
    return lambda: nn.ParameterList([nn.Parameter(torch.randn(shape))])


def chain(*modules):
    """A case of modules one after the other."""
    return lambda x, *made: three(nn.Sequential(*made)(x))


def linear(inputs=5, outputs=5, **options):
    return lambda: nn.Linear(inputs, outputs, **options)


CASES |= {
    name: (chain(), build, shape, 0)
    for name, shape, *build in [
        ("no bias", (6, 5), linear(bias=False), nn.Tanh, linear()),
        ("conv1d", (4, 3, 9), lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), nn.SiLU),
        ("conv2d with groups", (4, 4, 6, 6), lambda: nn.Conv2d(4, 8, 3, groups=4, padding_mode="circular", padding=1)),
        ("dilated conv2d", (3, 2, 9, 9), lambda: nn.Conv2d(2, 3, 3, dilation=2), lambda: nn.MaxPool2d(2)),
        ("transposed conv2d", (3, 4, 4, 4), lambda: nn.ConvTranspose2d(4, 2, 3, stride=2), nn.ELU),
        ("conv3d", (2, 2, 4, 4, 4), lambda: nn.Conv3d(2, 3, 3), lambda: nn.AdaptiveAvgPool3d(1)),
        ("batch norm in training", (6, 5), linear(), lambda: nn.BatchNorm1d(5), nn.Tanh, linear()),
        ("batch norm in evaluation", (6, 5), linear(), lambda: nn.BatchNorm1d(5).eval(), nn.Tanh, linear()),
        ("layer norm", (6, 5), linear(), lambda: nn.LayerNorm(5), nn.GELU, linear()),
        ("group norm", (4, 4, 5), lambda: nn.Conv1d(4, 4, 1), lambda: nn.GroupNorm(2, 4)),
        ("instance norm", (4, 3, 6), lambda: nn.Conv1d(3, 3, 1), lambda: nn.InstanceNorm1d(3, affine=True), nn.Tanh),
        ("rms norm", (6, 5), linear(), lambda: nn.RMSNorm(5), linear()),
        ("weight norm", (6, 5), lambda: parametrizations.weight_norm(nn.Linear(5, 4))),
        ("orthogonal weights", (6, 5), lambda: parametrizations.orthogonal(nn.Linear(5, 5)), nn.Tanh),
        ("spectral norm in evaluation", (6, 5), lambda: parametrizations.spectral_norm(nn.Linear(5, 4)).eval()),
        ("prelu", (6, 5), linear(), nn.PReLU, linear(), lambda: nn.Softmax(1)),
        ("in-place activations", (6, 5), linear(), lambda: nn.ReLU(inplace=True), linear(), lambda: nn.ELU(1, True)),
        ("pixel shuffle", (2, 4, 3, 3), lambda: nn.Conv2d(4, 8, 1), lambda: nn.PixelShuffle(2)),
    ]
}  # fmt: skip


@case(lambda: nn.LSTM(5, 3, num_layers=2, bidirectional=True, batch_first=True), shape=(4, 3, 5))
def bidirectional_lstm(x, lstm):
    outputs, (hidden, cell) = lstm(x)
    return [outputs.square().mean(), hidden.sum(), cell[-1].exp().mean()]


@case(lambda: nn.GRU(5, 3, batch_first=True), shape=(4, 3, 5))
def gru(x, layer):
    return three(layer(x)[0][:, -1])


@case(lambda: nn.RNNCell(5, 5), shape=(3, 4, 5))
def a_cell_used_at_each_step(x, cell):
    state = torch.zeros_like(x[0])
    for part in x:
        state = cell(part, state)
    return three(state)


@case(lambda: nn.MultiheadAttention(6, 2, batch_first=True), shape=(4, 3, 6))
def attention(x, layer):
    outputs, weights = layer(x, x, x)
    return [*three(outputs), weights.square().sum()]


@case(linear(6, 18), shape=(2, 3, 6))
def causal_attention(x, project):
    queries, keys, values = project(x).view(2, 3, 3, 2, 3).permute(2, 0, 3, 1, 4)
    return three(F.scaled_dot_product_attention(queries, keys, values, is_causal=True))


@case(lambda: nn.Embedding(7, 4, padding_idx=0), linear(4, 7), shape=(4, 3), integers=7)
def embedding_with_padding(x, embedding, out):
    return three(F.log_softmax(out(embedding(x).mean(1)), dim=1))


@case(lambda: nn.EmbeddingBag(7, 4, mode="mean"), shape=(4, 3), integers=7)
def embedding_bag(x, bag):
    return three(bag(x))


@case(lambda: nn.Embedding(7, 4), shape=(4, 3), integers=7)
def tied_weights(x, embedding):
    return three(embedding(x).mean(1) @ embedding.weight.T)


@case(linear(), linear())
def residual_blocks_with_one_module_used_twice(x, first, second):
    x = x + first(x).tanh()
    return three(x + second(first(x)).tanh())


@case(linear(5, 3), linear(3, 5), linear(8, 4))
def u_net(x, down, up, out):
    inner = down(x).tanh()
    return three(out(torch.cat([up(inner), inner], dim=1)))


@case(parameter(4, 3, 5), parameter(3, 4))
def einsum(x, first, second):
    return three(torch.einsum("bi,hki,kh->bh", x, first[0], second[0]))


@case(lambda: nn.Bilinear(5, 5, 3))
def bilinear(x, layer):
    return three(layer(x, x.roll(1, 0)))


@case(linear(), linear())
def in_place_writes_to_slices(x, first, second):
    z = torch.zeros(len(x), 8, dtype=x.dtype)
    z[:, :5] = first(x)
    z[:, 3:] += second(x)
    return three(z.mul_(2).clamp_(-3, 3))


@case(parameter(5, 4))
def a_parameter_that_is_not_contiguous(x, weights):
    weight = weights[0]
    weight.data = weight.data.t().contiguous().t()
    return three(x @ weight.flip(1)[:, ::2])


@case(parameter(), parameter(1, 5))
def parameters_that_are_broadcast(x, scale, shift):
    return three((x * scale[0] + shift[0].expand(6, 5)).tanh())


@case(parameter(5))
def losses_of_one_vector(x, weights):
    return list((x * weights[0]).square().mean(0).unbind())


@case(linear(), linear(), linear())
def a_parameter_of_one_task_and_an_unused_one(x, shared, own, unused):
    return [shared(x).square().mean(), own(shared(x)).exp().mean(), shared(x).sin().sum()]


@case(linear())
def a_loss_that_is_part_of_another(x, layer):
    first, second, third = three(layer(x))
    return [first, first * second, first.detach() * third]


@case(linear(), linear(5, 3))
def routing_to_experts(x, expert, gate):
    scores, places = gate(x).softmax(1).topk(2, dim=1)
    parts = torch.stack([expert(x), x.tanh(), x], dim=1).gather(1, places[..., None].expand(-1, -1, 5))
    return three((scores[..., None] * parts).sum(1))


@case(linear())
def scatter_and_cumulative_sums(x, layer):
    z = torch.zeros(4, 5, dtype=x.dtype).index_add(0, torch.tensor([0, 1, 1, 3, 0, 2]), layer(x))
    return three(z.cumsum(0) + torch.where(z > 0, z, z.square()))


@case(linear(5, 8))
def spectrum(x, layer):
    return three(torch.fft.rfft(layer(x)).abs().square() + 1)


@case(parameter(5, 5))
def matrix_decompositions(x, weights):
    square = weights[0] @ weights[0].T + torch.eye(5, dtype=x.dtype)
    solved = torch.linalg.solve(square, x.T).T
    return [*three(solved), torch.logdet(square), torch.linalg.cholesky(square).sum()]


@case(lambda: nn.Conv2d(2, 2, 3, padding=1), shape=(2, 2, 5, 5))
def resampling(x, conv):
    z = F.interpolate(conv(x), scale_factor=2, mode="bilinear", align_corners=False)
    grid = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, 4, dtype=x.dtype)] * 2, indexing="ij"), -1)
    return three(F.unfold(F.grid_sample(z, grid.expand(2, 4, 4, 2), align_corners=False), 2))


@case(linear(5, 8), linear(8, 1))
def derivatives_w_r_t_inputs(x, first, second):
    x = x.clone().requires_grad_()
    u = second(first(x).tanh())
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
    return [u.square().mean(), slope.square().mean(), (bend[:, 1] - u[:, 0]).square().mean()]


@case(linear(5, 4))
def usual_losses(x, layer):
    z, classes = layer(x), torch.tensor([0, 1, 2, 3, 0, 1])
    distribution = torch.full_like(z, 0.25)
    return [F.cross_entropy(z, classes, label_smoothing=0.1), F.huber_loss(z, 3 * distribution),
            F.kl_div(z.log_softmax(1), distribution, reduction="batchmean"), F.multi_margin_loss(z, classes),
            F.binary_cross_entropy_with_logits(z, distribution),
            F.cosine_embedding_loss(z, z.roll(1, 0), torch.ones(6))]  # fmt: skip


@case(linear(5, 4), linear(5, 4))
def functional_call_and_vmap(x, first, second):
    stacked = {
        name: torch.stack([one, dict(second.named_parameters())[name]]) for name, one in first.named_parameters()
    }
    outputs = torch.func.vmap(lambda weights: torch.func.functional_call(first, weights, (x,)))(stacked)
    return three(outputs.sum(0))


class Recorder(Homogenizer):
    """Keeps the rows of the step."""

    needs = frozenset({"jacobian"})

    def rows(self, step):
        self.found = torch.cat(
            [block.reshape(len(block), -1) for _, block in step.jacobian.by_parameter()], dim=1
        ).clone()
        return step.jacobian


def network(name):
    """Return losses and parameters of a case, the same for every call."""
    losses, build, shape, integers = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(len(name))
        x = torch.randint(integers, shape) if integers else torch.randn(shape, dtype=torch.float64)
        modules = nn.ModuleList(make() for make in build).double()
        return losses(x, *modules), dict(modules.named_parameters())


def assert_near(found, expected):
    """Compare with an absolute tolerance, because some gradients are zero but for rounding: biases before a norm."""
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10 * float(expected.abs().max()))


@pytest.mark.parametrize("memory", ["rows", "low"])
@pytest.mark.parametrize("name", CASES)
def test_a_step_of_any_architecture_is_that_of_one_gradient_per_loss(name, memory):
    losses, parameters = network(name)
    rows = matrix(losses, parameters.values())
    assert rows.isfinite().all()
    losses, parameters = network(name)
    pipe = gradhomog.pipeline("pcgrad(order='fixed')")
    report = gradhomog.backward(losses, pipe, parameters=parameters, memory=memory, inspect=True)
    assert_near(report.gramian, rows @ rows.T)
    written = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters.values()]
    assert_near(torch.cat([part.flatten() for part in written]), pipe.combine(rows))


@pytest.mark.parametrize("name", CASES)
def test_rows_of_any_architecture_are_one_gradient_per_loss(name):
    losses, parameters = network(name)
    recorder = Recorder()
    gradhomog.backward(losses, gradhomog.pipeline([recorder]), parameters=parameters)
    losses, parameters = network(name)
    assert_near(recorder.found, matrix(losses, parameters.values()))
