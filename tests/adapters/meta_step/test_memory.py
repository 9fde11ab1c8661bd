"""`step.add` frees the graph of its task, so that memory does not grow with the number of tasks."""

from __future__ import annotations

import gc
import weakref

import torch
import torchopt
from torch.nn.functional import mse_loss

import gradhomog
from gradhomog_adapters.torchopt import meta_step
from tests.adapters.meta_step.loops import STEPS, network, tasks


class SavedTensor:
    def __init__(self, tensor):
        self.tensor = tensor


def test_add_frees_the_graph_of_its_task():
    net, batch = network(), tasks(4)
    inner, saved, peaks = torchopt.MetaAdam(net, lr=0.02, eps_root=1e-8), weakref.WeakSet(), []

    def keep(tensor):
        box = SavedTensor(tensor)
        saved.add(box)
        return box

    gc.disable()  # tensors must be freed by reference counts, not by the garbage collector
    try:
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda box: box.tensor),
            meta_step(net, gradhomog.pipeline("pcgrad"), inner=inner) as step,
        ):
            for support_x, support_y, query_x, query_y in batch:
                with step.task():
                    for _ in range(STEPS):
                        inner.step(mse_loss(net(support_x), support_y))
                    loss = mse_loss(net(query_x), query_y)
                    peaks.append(len(saved))
                    step.add(loss)  # although `loss` is still referenced
                assert len(saved) == 0
    finally:
        gc.enable()
    assert peaks[0] > 50
    assert len(set(peaks)) == 1
