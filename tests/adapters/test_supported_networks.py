"""Supported networks: second derivatives of attention and recurrence; errors for unsupported modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import OptionError, TaskBatch
from tests.adapters.checks import assert_rows_match_finite_differences, networks, tasks


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
        (nn.DataParallel, r"`head` is a DataParallel.*that it wraps"),
        (nn.utils.weight_norm, r"`head`, a Linear, is normalized by a hook.*parametrizations"),
        (torch.jit.script, r"`head` is compiled by TorchScript"),
        pytest.param(
            lambda layer: torch.compile(layer, backend="eager"), r"`head` is compiled.*Pass the original module",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_unsupported_modules_raise_before_the_first_step(change, message):
    with pytest.raises(OptionError, match=message):
        gradhomog.learner("maml", nn.Linear(3, 4), change(nn.Linear(4, 3)))
