"""Recomputed inner steps: the same rows, and memory that does not grow with their number."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torchopt
from torch import nn

from gradhomog import OptionError, TaskBatch
from gradhomog.experiments.profiling.harness import peak_bytes
from gradhomog_adapters.maml import MAML
from gradhomog_adapters.mamlpp import MAMLPP
from gradhomog_adapters.meta_sgd import MetaSGD
from tests.adapters.checks import networks, tasks

INNER = {
    "sgd": "sgd",
    "weight decay": torchopt.sgd(lr=0.1, weight_decay=0.05),
    "momentum": "momentum",
    "adam": torchopt.adam(lr=0.02, eps_root=1e-8),
    "clipped": torchopt.chain(torchopt.clip.clip_grad_norm(1e6), torchopt.sgd(lr=0.1)),
}


@pytest.mark.parametrize("adapt", ["*", "head.*", ["encoder.0.*", "head.weight"]])
@pytest.mark.parametrize("norm", ["batch", "support"])
@pytest.mark.parametrize("inner", INNER)
def test_rows_are_those_without_recomputation(inner, norm, adapt):
    options = {"inner": INNER[inner], "inner_steps": 4, "norm": norm, "adapt": adapt}
    whole = MAML(*networks(norm=True), engine="loop", **options).rows(tasks())
    recomputed = MAML(*networks(norm=True), recompute=True, **options).rows(tasks())
    for name, rows in whole.jacobian.items():
        torch.testing.assert_close(recomputed.jacobian[name], rows, rtol=1e-11, atol=1e-15)
    torch.testing.assert_close(recomputed.feature_grads, whole.feature_grads)


def test_dropout_draws_the_same_masks_in_the_backward_pass():
    encoder, head = networks()
    encoder.append(nn.Dropout(0.5))
    rows = {}
    for recompute in (False, True):
        learner = MAML(encoder, head, engine="loop", recompute=recompute, inner_lr=0.5, inner_steps=3)
        torch.manual_seed(7)
        rows[recompute] = (learner.rows(tasks()).jacobian["encoder.0.weight"], torch.rand(1))
    torch.testing.assert_close(rows[False], rows[True])


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
