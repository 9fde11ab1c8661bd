"""ISI in learners: trained with, resumed, measured and gone at meta-test; the probabilities can be looked at."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog_plugins.isi import ISI
from tests.plugins.isi.networks import KEY, attached, images, learner, network, tasks


@pytest.mark.parametrize("kind", ["fomaml", "maml"])
def test_learners_train_with_it_in_a_pipeline(kind):
    encoder = network()
    model = gradhomog.learner(kind, encoder, nn.Linear(16, 2), homogenizers="isi + pcgrad", norm="support")
    outer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = model.step(tasks(), outer)
    assert torch.isfinite(report.losses).all()
    assert [stage.name for stage in model.probe(tasks())] == ["plain", "isi", "pcgrad"]


def test_meta_test_is_that_of_the_plain_learner():
    found = [learner(text).evaluate(tasks()).losses for text in ("none", "isi(rate=0.9)")]
    assert found[0] == found[1]


def test_training_goes_on_bit_for_bit_from_a_saved_state():
    text = "isi(neighbours=9, sampling='multinomial', rate=0.3, until=3)"
    first = learner(text)
    outer = torch.optim.SGD(first.parameters(), lr=0.1)
    first.step(tasks(seed=0), outer)
    saved = io.BytesIO()
    torch.save(first.state_dict(), saved)
    saved.seek(0)
    second = learner(text)
    second.load_state_dict(torch.load(saved, weights_only=True))
    for model in (first, second):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for seed in (1, 2, 3):
            model.step(tasks(seed=seed), optimizer)
    for mine, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_seed_decides_the_masks():
    losses = [learner(f"isi(seed={seed}, rate=0.5)").rows(tasks()).losses for seed in (0, 0, 1)]
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], losses[2])


def test_the_global_generator_and_the_modules_attributes_are_left_alone():
    model = learner("isi(neighbours=5)")
    before, attributes = torch.get_rng_state(), [set(vars(m)) for m in model.encoder.modules()]
    model.step(tasks(), torch.optim.SGD(model.parameters(), lr=0.1))
    assert torch.equal(torch.get_rng_state(), before)
    assert attributes == [set(vars(m)) for m in model.encoder.modules()]


def test_what_was_dropped_in_the_last_step_is_measured():
    model = learner("isi(temperature=inf, rate=0.25)")
    report = model.step(tasks(), torch.optim.SGD(model.parameters(), lr=0.1))
    found = report.measured["isi"]
    assert set(found) == {"drop_rate", "drop_rate.0", "drop_rate.3"}
    assert found["drop_rate"] == pytest.approx((found["drop_rate.0"] + found["drop_rate.3"]) / 2)
    assert found["drop_rate"] == pytest.approx(0.25, abs=0.02)
    assert "isi" not in gradhomog.pipeline("isi").homogenize(torch.ones(2, 3)).measured


def test_maps_show_the_probabilities_and_change_nothing_attached_or_not():
    encoder = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Conv2d(3, 2, 3))
    isi = ISI(neighbours=7)
    before, buffers, noise = isi.state_dict(), copy.deepcopy(encoder.state_dict()), torch.get_rng_state()
    alone = isi.maps(encoder, images())
    assert {name: tuple(found.shape) for name, found in alone.items()} == {"0": (6, 8, 8), "3": (6, 6, 6)}
    torch.set_rng_state(noise)
    with attached(isi, encoder):
        isi.begin(KEY, "support")
        within = isi.maps(encoder, images())
        assert not isi._held
    for name in alone:
        assert torch.equal(alone[name], within[name])
    assert torch.equal(isi.state_dict()["generator"], before["generator"])
    assert torch.equal(torch.get_rng_state(), noise)
    assert all(torch.equal(value, buffers[name]) for name, value in encoder.state_dict().items())
    assert isi.measured() == {}
