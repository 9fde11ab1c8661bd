"""The passes for which ISI draws masks, those that share them, and those without."""

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog_plugins.isi import ISI
from tests.plugins.isi.networks import KEY, OTHER, attached, begin, images, network


def drawn(isi, encoder, begins):
    """The zeros of a pass after each of these calls of `begin`; a second pass has the same."""
    with attached(isi, encoder) as zeros:
        for arguments in begins:
            begin(isi, *arguments)
            encoder(images())
            encoder(images())
    for first, second in zip(zeros[::2], zeros[1::2], strict=True):
        assert torch.equal(first, second)
    return zeros[::2]


def test_a_task_keeps_its_masks_through_all_passes_and_another_part_task_or_begin_gets_new_ones():
    begins = [(KEY, "support"), (KEY, "query"), (KEY, "support"), (OTHER, "support"), (OTHER, "support")]
    support, query, again, other, repeated = drawn(ISI(), network(), begins)
    assert torch.equal(support, again)
    for found in (query, other, repeated):  # a second `begin` of the same part: other inputs
        assert not torch.equal(support, found)
    assert not torch.equal(other, repeated)


def test_a_repeated_meta_step_draws_the_same_masks_and_the_next_one_new_ones():
    isi, encoder = ISI(), network()
    begins = [(key, part) for key in (KEY, OTHER) for part in ("support", "query", "query")]
    first, refused = drawn(isi, encoder, begins), drawn(isi, encoder, begins)
    with attached(isi, encoder):  # attached over several steps
        once, twice = drawn(isi, encoder, begins), drawn(isi, encoder, begins)
        isi.assign_state(isi.update(None))
        later = drawn(isi, encoder, [(*arguments, 1) for arguments in begins])
    for others in (refused, once, twice):
        assert all(torch.equal(one, other) for one, other in zip(first, others, strict=True))
    assert not any(torch.equal(one, other) for one, other in zip(first, later, strict=True))


def test_every_pass_has_new_masks_without_begin_and_they_are_a_function_of_seed_and_step():
    found = []
    for seed, steps in ((0, 0), (0, 0), (1, 0), (0, 1)):
        isi, encoder = ISI(seed=seed), network()
        isi.load_state_dict({"steps": steps})
        with attached(isi, encoder) as zeros:
            encoder(images())
            encoder(images())
        assert not torch.equal(*zeros)
        found.append(torch.stack(zeros))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[3])


def test_masks_fit_batches_of_every_size():
    isi, encoder = ISI(), network()
    with attached(isi, encoder) as zeros:
        begin(isi)
        for count in (6, 2, 6, 0, 1):
            encoder(images(count))
    assert [len(found) for found in zeros] == [6, 2, 6, 0, 1]
    assert torch.equal(zeros[0], zeros[2])


def test_a_layer_that_is_called_twice_in_a_pass_has_two_masks_which_are_kept():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, x):
            return self.conv(self.conv(x))

    isi, encoder, zeros = ISI(layers="conv"), Twice(), []
    isi.attach(encoder)
    encoder.conv.register_forward_hook(lambda m, a, output: zeros.append(output == 0))
    begin(isi)
    for _ in range(2):
        encoder(x=images())
    assert not torch.equal(zeros[0], zeros[1])
    assert torch.equal(torch.stack(zeros[:2]), torch.stack(zeros[2:]))
    assert set(isi.maps(encoder, images())) == {"conv", "conv#2"}


@pytest.mark.parametrize(("parts", "dropping"), [("support", [True, False]), ("query", [False, True])])
def test_only_the_selected_parts_are_dropped(parts, dropping):
    isi, encoder = ISI(parts=parts), network()
    with attached(isi, encoder) as zeros:
        for part in ("support", "query"):
            begin(isi, part=part)
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
    assert not isi._current.inputs
