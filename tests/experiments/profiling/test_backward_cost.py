"""`--kernel backward`: every work takes the same step, and what the table says of it is so."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from gradhomog.errors import OptionError, UnknownPluginError
from gradhomog.experiments.profiling import backward
from gradhomog.experiments.profiling.backward import Cosine, backward_costs, gradient, works
from gradhomog.experiments.profiling.backward_peers import BY_HAND, SUMMED
from gradhomog.experiments.profiling.backward_tasks import Setting
from gradhomog.experiments.profiling.table import render, to_json

VECTORS, IMAGES = (3, 4, 6), (2, 3, 16, 4)
QUICK = {"rounds": 3, "seconds": 0.01}
PEERS = ["torchjd Mean", "torchjd Mean, chunk 1", "torchjd UPGrad", "torchjd UPGrad, chunk 1"]

both = pytest.mark.parametrize("shape", [VECTORS, IMAGES], ids=["vectors", "images"])


def found(work, batch):
    work(batch)
    return gradient(work)


def losses(network, batch):
    features = network.encoder(batch.inputs)
    heads = zip(network.heads, batch.targets, strict=True)
    return torch.stack([(head(features) - target).square().mean() for head, target in heads])


@both
def test_all_means_are_the_gradient_of_the_mean_loss_in_float64(shape):
    setting = Setting(shape, torch.float64)
    made, _ = works(["none", "pcgrad"], setting)
    batch, network = setting.batch(1), setting.network()
    slopes = torch.autograd.grad(losses(network, batch).mean(), [*network.encoder.parameters()])
    expected = torch.cat([slope.flatten() for slope in slopes])
    means = {label for label, work in made.items() if work.mean}
    assert means == {BY_HAND, SUMMED, "backward none", "backward none, features", *PEERS[:2]}
    for label in means:
        factor = shape[0] if label == SUMMED else 1
        torch.testing.assert_close(found(made[label], batch), factor * expected, rtol=1e-9, atol=1e-12, msg=label)


@both
def test_the_ways_of_a_method_take_the_same_step_and_it_is_that_of_the_method(shape):
    setting, weights = Setting(shape, torch.float64), [2.0, 1.0, 5.0][: shape[0]]
    text = f"static(weights={weights})"
    made, _ = works([text], setting)
    batch, network = setting.batch(1), setting.network()
    slopes = torch.autograd.grad(losses(network, batch) @ torch.tensor(weights).double(), network.encoder.parameters())
    expected = torch.cat([slope.flatten() for slope in slopes])
    for label in (f"backward {text}", f'backward {text}, level="features"'):
        cosine = torch.cosine_similarity(found(made[label], batch), expected, dim=0)
        assert cosine == pytest.approx(1, abs=1e-12), label
        assert not made[label].mean
    chunks = [found(made[label], batch) for label in PEERS[2:]]
    torch.testing.assert_close(chunks[0], chunks[1], rtol=1e-9, atol=1e-12)


def test_heads_have_a_gradient_in_every_work():
    setting = Setting(VECTORS)
    for label, work in works(["none", "pcgrad"], setting)[0].items():
        work(setting.batch(0))
        assert all(parameter.grad is not None for parameter in work.network.heads.parameters()), label


@both
def test_a_step_leaves_the_parameters_and_finds_the_same_gradient_again(shape):
    setting = Setting(shape)
    start = [parameter.detach().clone() for parameter in setting.network().parameters()]
    for work in works(["none"], setting)[0].values():
        first = found(work, setting.batch(0)).clone()
        torch.testing.assert_close(found(work, setting.batch(0)), first)
        assert all(map(torch.equal, work.network.parameters(), start))


def test_batches_differ_by_round_and_not_by_call_and_are_the_same_in_another_dtype():
    for shape in (VECTORS, IMAGES):
        one, again, other = Setting(shape).batch(3), Setting(shape).batch(3), Setting(shape).batch(4)
        assert torch.equal(one.inputs, again.inputs)
        assert not torch.equal(one.targets, other.targets)
        assert torch.equal(one.inputs.double(), Setting(shape, torch.float64).batch(3).inputs)
    assert one.inputs.shape == (25, 3, 16, 16)
    assert one.targets.shape == (2, 25, 1)


def test_networks_are_those_of_the_specification_and_carry_nothing_from_step_to_step():
    mlp, conv4 = Setting((2, 64, 256)).network(), Setting((2, 3, 32, 32)).network()
    assert sum(parameter.numel() for parameter in mlp.encoder.parameters()) == 65 * 256 + 257 * 256 + 257 * 128
    assert conv4.encoder(torch.zeros(1, 3, 32, 32)).shape == (1, 128)
    assert len([layer for layer in conv4.encoder if isinstance(layer, torch.nn.GroupNorm)]) == 4
    assert not [*mlp.buffers(), *conv4.buffers()]


def test_the_cosine_is_that_of_means_only():
    setting = Setting(IMAGES)
    made, _ = works(["none", "pcgrad"], setting)
    cosine = Cosine(setting)
    for label, work in made.items():
        work(setting.batch(0))
        value = cosine(work)
        assert value == pytest.approx(1, abs=1e-5) if work.mean else value is None, label


@pytest.mark.slow
def test_the_default_table_has_loops_ours_and_peers(monkeypatch):
    monkeypatch.setattr(backward, "EXPRESSIONS", ("none", "pcgrad", "of_tomorrow"))
    vectors, images = backward_costs([], [VECTORS, IMAGES], **QUICK)
    ours = ["backward none", "backward none, features", "backward pcgrad", 'backward pcgrad, level="features"']
    for table in (vectors, images):
        assert [row.label for row in table.rows] == [BY_HAND, SUMMED, *ours, *PEERS]
        assert table.references == (BY_HAND, SUMMED)
        assert table.failures == {}
        assert "Left out, as they do not load: of_tomorrow; `gradhomog show NAME` tells why." in table.notes
        assert all((row.cosine is not None) == ("none" in row.label or "Mean" in row.label) for row in table.rows[2:])
        assert len({row.seconds.n for row in table.rows}) == 1
    assert vectors.title == "one step: mlp 4-6-6-128, 3 heads, 64 vectors, 1 thread"
    assert images.title == (
        "one step: conv4 with group normalization, 4 filters, 2 heads, 25 images (3, 16, 16), 1 thread"
    )
    text, data = render(images), to_json(images)
    assert "cosine" in text.splitlines()[2]
    assert all(row["peak_bytes"] for row in data["rows"])


def test_without_torchjd_that_is_told_once(monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torchjd" else there(name))
    made, left_out = works(["none"], Setting(VECTORS))
    assert list(made) == [BY_HAND, SUMMED, "backward none", "backward none, features"]
    assert left_out == ["TorchJD is left out: torchjd is not installed."]


@pytest.mark.parametrize("shape", [(4, 5), (4, 3, 32, 32, 1), (0, 4, 6)])
def test_a_shape_of_neither_form_is_refused(shape):
    forms = r"tasks x inputs x hidden \(mlp\) or tasks x channels x pixels x filters \(conv4\), each at least 1; got "
    with pytest.raises(OptionError, match=forms):
        backward_costs(["none"], [shape], **QUICK)


def test_an_unknown_homogenizer_is_refused_before_anything_is_timed():
    with pytest.raises(UnknownPluginError, match="Did you mean 'pcgrad'"):
        backward_costs(["pcgard"], [VECTORS], **QUICK)
