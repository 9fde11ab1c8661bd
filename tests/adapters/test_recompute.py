"""Inner steps that are run again on the way back: the same rows, and no more memory for more of them."""

from __future__ import annotations

import gc

import pytest
import torch
import torchopt
from torch import nn

from gradhomog import OptionError, TaskBatch
from gradhomog_adapters.maml import MAML
from tests.adapters.few_shot import networks, tasks

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
def test_rows_are_those_of_the_whole_graph(inner, norm, adapt):
    options = {"inner": INNER[inner], "inner_steps": 4, "norm": norm, "adapt": adapt}
    whole = MAML(*networks(norm=True), engine="loop", **options).rows(tasks())
    again = MAML(*networks(norm=True), recompute=True, **options).rows(tasks())
    for name, rows in whole.jacobian.items():
        torch.testing.assert_close(again.jacobian[name], rows, rtol=1e-11, atol=1e-15)
    torch.testing.assert_close(again.feature_grads, whole.feature_grads)


@pytest.mark.parametrize("steps", [0, 1])
def test_few_steps_are_no_special_case(steps):
    whole = MAML(*networks(), engine="loop", inner_steps=steps).rows(tasks()).jacobian
    again = MAML(*networks(), recompute=True, inner_steps=steps).rows(tasks()).jacobian
    for name, rows in whole.items():
        torch.testing.assert_close(again[name], rows, rtol=1e-12, atol=1e-15)


def test_dropout_draws_the_same_masks_on_the_way_back():
    encoder, head = networks()
    encoder.append(nn.Dropout(0.5))
    rows = {}
    for recompute in (False, True):
        learner = MAML(encoder, head, engine="loop", recompute=recompute, inner_lr=0.5, inner_steps=3)
        torch.manual_seed(7)
        rows[recompute] = (learner.rows(tasks()).jacobian["encoder.0.weight"], torch.rand(1))
    torch.testing.assert_close(rows[False], rows[True])


class Saved:
    """A tensor that a graph keeps for its derivative; counts how many are kept at once."""

    alive, most = 0, 0

    def __init__(self, tensor):
        self.tensor = tensor
        Saved.alive += 1
        Saved.most = max(Saved.most, Saved.alive)

    def __del__(self):
        Saved.alive -= 1


@pytest.mark.slow
@pytest.mark.parametrize(("recompute", "grows"), [(False, True), (True, False)])
def test_graphs_of_one_step_are_alive_at_a_time(recompute, grows):
    most = []
    for steps in (3, 12):
        learner = MAML(*networks(), engine="loop", recompute=recompute, inner_steps=steps)
        gc.collect()
        Saved.alive = Saved.most = 0
        with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
            learner.rows(TaskBatch.stack([tasks()[0]]))
        most.append(Saved.most)
    assert (most[1] > 2 * most[0], most[1] == most[0]) == (grows, not grows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "vmap"}, "one task after the other"),
        ({"compile": True}, "one task after the other"),
        ({"inner": lambda: torchopt.sgd(0.1, momentum=0.9, dampening=0.5)}, "remembers which was the first"),
    ],
)
def test_what_would_not_do_the_same_again_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        MAML(*networks(), recompute=True, **options)


def test_what_is_attached_to_the_encoder_is_refused():
    encoder = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    with pytest.raises(OptionError, match="attached to it may act otherwise"):
        MAML(encoder, nn.Linear(8, 2), "isi", recompute=True)


def test_a_loop_that_has_nothing_left_to_change_is_none():
    rows = {}
    for recompute in (False, True):
        encoder, head = networks()
        learner = MAML(encoder, head, adapt="head.*", engine="loop", recompute=recompute)
        head.requires_grad_(False)
        rows[recompute] = learner.rows(tasks()).jacobian
    torch.testing.assert_close(rows[True], rows[False])
