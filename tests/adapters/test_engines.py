"""Engines, recomputation and supported networks: the same rows, derivatives, memory, and errors."""

import copy
import pickle
from functools import partial

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import OptionError, TaskBatch
from gradhomog.experiments.profiling.harness import peak_bytes
from gradhomog_adapters.maml import MAML
from gradhomog_adapters.mamlpp import MAMLPP
from gradhomog_adapters.meta_sgd import MetaSGD
from tests.adapters import checks
from tests.adapters.checks import assert_rows_match_finite_differences, networks, tasks


def conv(*layers):
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), *layers, nn.Flatten())


# PyTorch 2.13, 2026: torch.func.grad of a vmap is wrong for batch, instance and layer norm with affine
# parameters, without an error. The engine is a vmap of gradients.
NETWORKS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(32, 5), nn.Tanh()),
    "convolution": lambda: conv(nn.Tanh()),
    "convolution, relu": lambda: conv(nn.ReLU()),
    "two convolutions": lambda: conv(nn.Tanh(), nn.Conv2d(3, 3, 3)),
    "max pooling": lambda: conv(nn.MaxPool2d(2), nn.Tanh()),
    "average pooling": lambda: conv(nn.AvgPool2d(2), nn.Tanh()),
    "adaptive pooling": lambda: conv(nn.Tanh(), nn.AdaptiveAvgPool2d(2)),
    "batch norm": lambda: conv(nn.BatchNorm2d(3), nn.Tanh()),
    "batch norm without affine": lambda: conv(nn.BatchNorm2d(3, affine=False), nn.Tanh()),
    "instance norm": lambda: conv(nn.InstanceNorm2d(3, affine=True), nn.Tanh()),
    "layer norm": lambda: conv(nn.LayerNorm((3, 4, 4)), nn.Tanh()),
    "group norm": lambda: conv(nn.GroupNorm(3, 3), nn.Tanh()),
    "strided, leaky": lambda: nn.Sequential(nn.Conv2d(2, 3, 3, 2), nn.LeakyReLU(), nn.Flatten()),
}


def map_tasks(count=3):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 10, 2, 4, 4, generator=generator, dtype=torch.float64)
    x = x + torch.randn(count, 1, 2, 4, 4, generator=generator, dtype=torch.float64)
    y = torch.arange(2).repeat(count, 5)
    return TaskBatch(x[:, :4], y[:, :4], x[:, 4:], y[:, 4:])


def network(kind):
    torch.manual_seed(3)
    encoder = NETWORKS[kind]()
    head = nn.Linear(encoder(torch.zeros(2, 2, 4, 4)).shape[1], 2)
    for part in encoder.modules():  # initial scales and shifts of 1 and 0 would hide wrong derivatives
        if isinstance(part, nn.BatchNorm2d | nn.InstanceNorm2d | nn.LayerNorm | nn.GroupNorm) and hasattr(
            part, "weight"
        ):
            for parameter in part.parameters():
                nn.init.uniform_(parameter, 0.5, 1.5)
    return encoder.double(), head.double()


@pytest.mark.parametrize("kind", NETWORKS)
def test_both_engines_give_the_same_rows(kind):
    loop, vmap = (
        MAML(*network(kind), engine=engine, inner_lr=0.1, inner_steps=2).rows(map_tasks())
        for engine in ("loop", "vmap")
    )
    checks.assert_rows_equal(loop, vmap)


@pytest.mark.parametrize("inner", ["nesterov", "dampening", "adam", "rmsprop"])
def test_both_engines_run_the_same_inner_optimizer(inner):
    loop, vmap = (
        MAML(*network("linear"), inner=checks.INNER[inner], engine=engine).rows(map_tasks())
        for engine in ("loop", "vmap")
    )
    checks.assert_rows_equal(loop, vmap, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own imports
def test_compiled_rows_are_those_of_the_loop():
    loop = MAML(*network("linear"), engine="loop", inner_lr=0.1, inner_steps=2).rows(map_tasks())
    compiled = MAML(*network("linear"), compile="aot_eager", inner_lr=0.1, inner_steps=2)
    again = copy.deepcopy(pickle.loads(pickle.dumps(compiled)))  # pickled without the compiled code
    for found in (compiled, again):
        checks.assert_rows_equal(loop, found.rows(map_tasks()))


# -- selection of the engine -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "homogenizers", "options", "tasks_at_once"),
    [
        ([nn.Flatten(), nn.Linear(32, 5)], "none", {}, True),
        ([nn.Flatten(), nn.Linear(32, 5)], "pcgrad", {}, True),
        ([nn.Flatten(), nn.Linear(32, 5)], "rotate", {}, False),
        ([nn.Flatten(), nn.Linear(32, 5), nn.Dropout(0.1)], "none", {}, False),
        ([nn.Flatten(), nn.Linear(32, 5)], "none", {"engine": "loop"}, False),
        ([nn.Flatten(), nn.Linear(32, 5)], "none", {"recompute": True}, False),
        ([nn.Conv2d(2, 3, 3), nn.Flatten()], "none", {}, False),
        ([nn.Conv2d(2, 3, 3), nn.Flatten()], "none", {"engine": "vmap"}, True),
    ],
)
def test_auto_runs_small_networks_at_once_unless_a_homogenizer_acts_before_rows(
    layers, homogenizers, options, tasks_at_once
):
    torch.manual_seed(0)
    encoder = nn.Sequential(checks.CallCounter(), *layers)
    head = nn.Linear(encoder(torch.zeros(2, 2, 4, 4)).shape[1], 2)
    learner = MAML(encoder.double(), head.double(), homogenizers, inner_steps=1, **options)
    learner.rows(map_tasks())  # also finds the parameters that no loss depends on, once
    encoder[0].calls = 0
    learner.rows(map_tasks())
    assert (encoder[0].calls == 2) == tasks_at_once


def test_auto_uses_the_loop_if_the_optimizer_reads_a_value():
    loop, auto = (
        MAML(*network("linear"), inner=checks.INNER["clipped"], engine=engine).rows(map_tasks())
        for engine in ("loop", "auto")
    )
    assert all(torch.equal(loop.jacobian[name], auto.jacobian[name]) for name in loop.jacobian)


class Unvectorized(nn.Module):
    """An operation on values, of which `torch.func.vmap` has none."""

    def __init__(self, operation):
        super().__init__()
        self.operation = operation

    def forward(self, x):
        return self.operation(x)


def zero_first(y):
    result = torch.zeros(y.shape, dtype=y.dtype)
    result += y  # in place on a tensor that is not batched
    return result


@pytest.mark.parametrize(
    "operation",
    [
        lambda y: y if y.sum() > 0 else 2 * y,
        lambda y: y / float(y.detach().abs().max()),
        lambda y: y * len(torch.nonzero(y > 0)),
        lambda y: torch.stack([row[row > -9] for row in y]),
        lambda y: y * torch.from_numpy(y.detach().numpy()).sign(),
        zero_first,
    ],
    ids=["branch", "item", "nonzero", "mask", "numpy", "in place"],
)
@pytest.mark.parametrize("name", ["maml", "imaml", "reptile", "protonet"])
def test_a_network_that_vmap_cannot_run_is_an_error_that_names_the_loop(name, operation):
    def learner(engine):
        encoder, head = networks()
        return gradhomog.learner(name, nn.Sequential(encoder, Unvectorized(operation)), head, engine=engine)

    loop, auto = (learner(engine).rows(tasks()).jacobian for engine in ("loop", "auto"))
    assert all(torch.equal(loop[parameter], auto[parameter]) for parameter in loop)
    with pytest.raises(OptionError, match=r"engine='vmap': PyTorch cannot run .* Use engine='loop' or 'auto'") as found:
        learner("vmap").rows(tasks())
    assert isinstance(found.value.__cause__, RuntimeError)


def test_an_error_of_the_network_itself_is_not_changed_under_vmap():
    encoder, head = networks()
    broken = MAML(nn.Sequential(encoder, Unvectorized(lambda y: y @ torch.ones(9, 9))), head, engine="vmap")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        broken.rows(tasks())


def test_vmap_raises_if_a_homogenizer_requires_one_task_after_the_other():
    learner = MAML(*network("linear"), "rotate", engine="vmap")
    with pytest.raises(OptionError, match=r"rotate requires one task after the other.*engine='loop'"):
        learner.rows(map_tasks())


def test_dropout_draws_for_each_task_alone_under_vmap():
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(32, 5)).double()
    one = map_tasks(1)
    same = TaskBatch(
        *(t.repeat(3, *[1] * (t.dim() - 1)) for t in (one.support_x, one.support_y, one.query_x, one.query_y))
    )
    losses = MAML(encoder, nn.Linear(5, 2).double(), engine="vmap").rows(same).losses
    assert len(set(losses.tolist())) == 3


@pytest.mark.parametrize("adapt", ["*", ["encoder.0.*", "head.weight"]])
@pytest.mark.parametrize("norm", ["batch", "support"])
@pytest.mark.parametrize("inner", ["sgd", "weight decay", "momentum", "adam", "clipped"])
def test_rows_are_those_without_recomputation(inner, norm, adapt):
    options = {"inner": checks.INNER[inner], "inner_steps": 4, "norm": norm, "adapt": adapt}
    whole = MAML(*networks(norm=True), engine="loop", **options).rows(tasks())
    recomputed = MAML(*networks(norm=True), recompute=True, **options).rows(tasks())
    for name, rows in whole.jacobian.items():
        torch.testing.assert_close(recomputed.jacobian[name], rows, rtol=1e-11, atol=1e-15)
    torch.testing.assert_close(recomputed.feature_grads, whole.feature_grads)


@pytest.mark.parametrize(
    "make", [MAML, MetaSGD, partial(MAMLPP, multi_step_steps=0)], ids=["maml", "meta_sgd", "mamlpp"]
)
def test_memory_per_step_is_that_of_its_arguments_and_not_of_its_graph(make):
    """Measure bytes, because hooks on saved tensors miss tensors that a step keeps otherwise."""
    torch.manual_seed(0)
    encoder, head = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh()), nn.Linear(32, 3)
    x, y = torch.randn(1, 400, 20), torch.arange(400)[None] % 3
    batch, few, many = TaskBatch(x, y, x, y), 3, 12
    growth = {}
    for recompute in (False, True):
        peaks = []
        for steps in (few, many):
            learner = make(encoder, head, engine="loop", recompute=recompute, inner_steps=steps)
            peaks.append(peak_bytes(lambda: learner.rows(batch)))  # noqa: B023 - called at once
        growth[recompute] = (peaks[1] - peaks[0]) / (many - few)
    size = sum(p.nbytes for p in (*encoder.parameters(), *head.parameters()))
    activations = 400 * 32 * 4
    assert growth[False] > 4 * activations
    assert growth[True] < 2 * size < activations


def test_recompute_rejects_homogenizers_that_attach_to_the_encoder():
    encoder = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    with pytest.raises(OptionError, match="attached to it may act differently"):
        MAML(encoder, nn.Linear(8, 2), "isi", recompute=True)


class Counter(nn.Module):
    """Divides by its number of calls, which is stored in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("runs", torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        self.runs += 1
        return x / float(self.runs)


def test_a_recomputed_step_resets_the_buffers_that_a_layer_reads():
    encoder, head = networks()
    encoder.append(Counter())
    kept, recomputed = (
        MAML(encoder, head, inner_lr=0.1, inner_steps=4, engine="loop", recompute=recompute).rows(tasks()).jacobian
        for recompute in (False, True)
    )
    for name, rows in kept.items():
        torch.testing.assert_close(recomputed[name], rows, rtol=1e-10, atol=1e-13)


class Attention(nn.Module):
    """Attention over three inputs as three tokens."""

    def __init__(self, layer):
        super().__init__()
        self.up, self.layer = nn.Linear(1, 4), layer

    def forward(self, x):
        return self.layer(self.up(x[..., None])).flatten(1)


class KernelAttention(nn.Module):
    """Calls the attention kernel directly."""

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(1, 4, batch_first=True)

    def forward(self, x):
        return self.layer(x[..., None])[0].flatten(1)


def transformer():
    return nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, activation="gelu")


ENCODERS = {
    "transformer layer": lambda: Attention(transformer()),
    "attention": lambda: Attention(KernelAttention()),
    "lstm": Recurrent,
    "weight norm": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 12)), nn.Tanh()),
    "weight norm as a whole": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 12), dim=-1)),
    "tied weights": lambda: nn.Sequential(*(2 * [nn.Linear(3, 3)]), nn.Tanh(), nn.Linear(3, 12)),
    "a lazy one, after a pass": lambda: nn.Sequential(nn.LazyLinear(12), nn.Tanh()),
}


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("learner", ["maml", "anil"])
def test_rows_of_any_pair_of_modules_are_derivatives(learner, kind):
    torch.manual_seed(0)
    encoder, head = ENCODERS[kind](), nn.Linear(12, 3)
    encoder(torch.zeros(2, 3))
    instance = gradhomog.learner(learner, encoder.double(), head.double(), inner_lr=0.3, inner_steps=2)
    assert_rows_match_finite_differences(instance, tasks(1))


def test_the_attention_kernels_are_restored_afterwards():
    encoder, head = networks()
    before = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()
    learner = gradhomog.learner("maml", encoder, head)
    learner.rows(tasks())
    with pytest.raises(RuntimeError):
        learner.rows(TaskBatch(*(torch.zeros(1, 2, 7), torch.zeros(1, 2).long()) * 2))
    assert (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()) == before


# PyTorch 2.13, 2026: second derivatives of `torch._weight_norm` are wrong, without an error. Ours are correct:
# test_rows_of_any_pair_of_modules_are_derivatives has the input "weight norm" (docs/decisions/0013).
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_replaced_weight_norm_has_the_same_outputs(dim):
    encoder, head = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4), dim=dim)), nn.Linear(4, 3)
    task = tasks()[0]
    learner = gradhomog.learner("maml", encoder.double(), head.double(), inner_steps=0)
    with torch.no_grad():
        expected = head(encoder(task.query_x))
    torch.testing.assert_close(learner.predict(task.support_x, task.support_y, task.query_x), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of the compiler
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda layer: nn.LazyLinear(4), r"`head`, a LazyLinear, has uninitialized parameters"),
        (nn.DataParallel, r"`head`, a DataParallel.*that it wraps"),
        (nn.utils.weight_norm, r"`head`, a Linear, is normalized by a hook.*parametrizations"),
        (torch.jit.script, r"`head`.* is compiled by TorchScript"),
        pytest.param(
            lambda layer: torch.compile(layer, backend="eager"), r"`head`.* is compiled.*Pass the original module",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_unsupported_modules_raise_before_the_first_step(change, message):
    with pytest.raises(OptionError, match=message):
        gradhomog.learner("maml", nn.Linear(3, 4), change(nn.Linear(4, 3)))
