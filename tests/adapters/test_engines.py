"""Both engines give the same rows for 13 kinds of network, and are selected correctly."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torchopt
from torch import nn

import gradhomog
from gradhomog import OptionError, TaskBatch
from gradhomog_adapters.maml import MAML
from tests.adapters import checks


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


def tasks(count=3):
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


@pytest.mark.parametrize("learner", ["maml", "anil", "meta_sgd"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_both_engines_give_the_same_rows(kind, learner):
    options = {"rates": 0.1} if learner == "meta_sgd" else {"inner_lr": 0.1, "inner_steps": 2}
    loop, vmap = (
        gradhomog.learner(learner, *network(kind), engine=engine, **options).rows(tasks())
        for engine in ("loop", "vmap")
    )
    checks.assert_rows_equal(loop, vmap)


@pytest.mark.parametrize("kind", NETWORKS)
def test_rows_are_the_derivatives_of_the_losses(kind):
    learner = MAML(*network(kind), engine="loop", inner_lr=0.1, inner_steps=2)
    checks.assert_rows_match_finite_differences(learner, tasks(1))


@pytest.mark.parametrize(
    "inner",
    [torchopt.sgd(0.1, momentum=0.9, nesterov=True), torchopt.adam(0.02, eps_root=1e-8), torchopt.adagrad(0.05),
     lambda: torchopt.sgd(0.1, momentum=0.9, dampening=0.5), "adamw"],
    ids=["nesterov", "adam", "adagrad", "dampening", "adamw"],
)  # fmt: skip
def test_both_engines_run_the_same_inner_optimizer(inner):
    loop, vmap = (MAML(*network("linear"), inner=inner, engine=engine).rows(tasks()) for engine in ("loop", "vmap"))
    checks.assert_rows_equal(loop, vmap, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own imports
def test_compiled_rows_are_those_of_the_loop():
    loop = MAML(*network("linear"), engine="loop", inner_lr=0.1, inner_steps=2).rows(tasks())
    compiled = MAML(*network("linear"), compile="aot_eager", inner_lr=0.1, inner_steps=2)
    again = copy.deepcopy(pickle.loads(pickle.dumps(compiled)))  # pickled without the compiled code
    for found in (compiled, again):
        checks.assert_rows_equal(loop, found.rows(tasks()))


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
    learner.rows(tasks())  # also finds the parameters that no loss depends on, once
    encoder[0].calls = 0
    learner.rows(tasks())
    assert (encoder[0].calls == 2) == tasks_at_once


def test_auto_uses_the_loop_if_the_optimizer_reads_a_value():
    clipped = torchopt.chain(torchopt.clip.clip_grad_norm(0.1), torchopt.sgd(lr=0.1))
    loop, auto = (MAML(*network("linear"), inner=clipped, engine=engine).rows(tasks()) for engine in ("loop", "auto"))
    assert all(torch.equal(loop.jacobian[name], auto.jacobian[name]) for name in loop.jacobian)


def test_vmap_raises_if_a_homogenizer_requires_one_task_after_the_other():
    learner = MAML(*network("linear"), "rotate", engine="vmap")
    with pytest.raises(OptionError, match=r"rotate requires one task after the other.*engine='loop'"):
        learner.rows(tasks())


def test_dropout_draws_for_each_task_alone_under_vmap():
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(32, 5)).double()
    one = tasks(1)
    same = TaskBatch(
        *(t.repeat(3, *[1] * (t.dim() - 1)) for t in (one.support_x, one.support_y, one.query_x, one.query_y))
    )
    losses = MAML(encoder, nn.Linear(5, 2).double(), engine="vmap").rows(same).losses
    assert len(set(losses.tolist())) == 3
