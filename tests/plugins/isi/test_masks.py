"""When ISI draws masks, when it holds them, and when it drops nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog_plugins.isi import ISI
from tests.plugins.isi.networks import KEY, OTHER, attached, images, network


def test_a_task_keeps_its_masks_through_all_passes_and_another_gets_new_ones():
    isi, encoder, x = ISI(), network(), images()
    with attached(isi, encoder) as zeros:
        for key, part in ((KEY, "support"), (KEY, "query"), (KEY, "support"), (OTHER, "support"), (OTHER, "support")):
            isi.begin(key, part)
            encoder(x)
            encoder(x)
    for first, second in zip(zeros[::2], zeros[1::2], strict=True):
        assert torch.equal(first, second)
    support, query, again, other, repeated = zeros[::2]
    assert torch.equal(support, again)
    for found in (query, other, repeated):
        assert not torch.equal(support, found)
    assert not torch.equal(other, repeated)


def test_every_pass_has_new_masks_where_nobody_says_what_the_inputs_are():
    isi, encoder, x = ISI(), network(), images()
    with attached(isi, encoder) as zeros:
        encoder(x)
        encoder(x)
    assert not torch.equal(*zeros)
    assert not isi._held


def test_masks_fit_batches_of_every_size():
    isi, encoder = ISI(), network()
    with attached(isi, encoder) as zeros:
        isi.begin(KEY, "support")
        for count in (6, 2, 6, 0, 1):
            encoder(images(count))
    assert [len(found) for found in zeros] == [6, 2, 6, 0, 1]
    assert torch.equal(zeros[0], zeros[2])


def test_a_layer_that_runs_twice_in_a_pass_has_two_masks_which_are_held():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, x):
            return self.conv(self.conv(x))

    isi, encoder, zeros = ISI(layers="conv"), Twice(), []
    isi.attach(encoder)
    encoder.conv.register_forward_hook(lambda m, a, output: zeros.append(output == 0))
    isi.begin(KEY, "support")
    for _ in range(2):
        encoder(x=images())
    assert not torch.equal(zeros[0], zeros[1])
    assert torch.equal(torch.stack(zeros[:2]), torch.stack(zeros[2:]))
    assert set(isi.maps(encoder, images())) == {"conv", "conv#2"}


@pytest.mark.parametrize(("parts", "dropping"), [("support", [True, False]), ("query", [False, True])])
def test_only_the_parts_asked_for_are_dropped(parts, dropping):
    isi, encoder = ISI(parts=parts), network()
    with attached(isi, encoder) as zeros:
        for part in ("support", "query"):
            isi.begin(KEY, part)
            encoder(images())
    assert [bool(found.any()) for found in zeros] == dropping


def test_nothing_is_dropped_in_evaluation_nor_after_detaching_nor_after_until():
    isi, encoder, x = ISI(until=1), network(), images()
    plain = encoder(x)
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in encoder.modules()]
    with attached(isi, encoder):
        assert not torch.equal(encoder(x), plain)
        assert torch.equal(encoder.eval()(x), plain)
        encoder.train()
        gradhomog.pipeline([isi]).combine(torch.ones(2, 3))
        assert torch.equal(encoder(x), plain)
    isi.steps = 0
    assert torch.equal(encoder(x), plain)
    assert hooks == [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in encoder.modules()]
    assert not isi._held
