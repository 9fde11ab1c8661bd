"""ISI in learners: the reported shares; maps of its probabilities."""

import copy

import pytest
import torch
from torch import nn

from gradhomog_plugins.isi import ISI
from tests.plugins.isi.networks import attached, begin, images, learner, tasks


def test_the_shares_dropped_in_a_step_are_reported():
    model = learner("isi(temperature=inf, rate=0.25)")
    report = model.step(tasks(), torch.optim.SGD(model.parameters(), lr=0.1))
    found = report.measured["isi"]
    assert set(found) == {"drop_rate", "drop_rate.0", "drop_rate.3"}
    assert found["drop_rate"] == pytest.approx((found["drop_rate.0"] + found["drop_rate.3"]) / 2)
    assert found["drop_rate"] == pytest.approx(0.25, abs=0.02)
    again = model.homogenizers.homogenize(torch.ones(2, 3), torch.ones(2), domains=["a", "b"])
    assert not again.measured.get("isi")  # nothing was dropped for this step


def test_maps_are_the_probabilities_and_change_nothing_attached_or_not():
    encoder = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Conv2d(3, 2, 3))
    isi = ISI(neighbours=7)
    buffers, noise = copy.deepcopy(encoder.state_dict()), torch.get_rng_state()
    alone = isi.maps(encoder, images())
    assert {name: tuple(found.shape) for name, found in alone.items()} == {"0": (6, 8, 8), "3": (6, 6, 6)}
    torch.set_rng_state(noise)
    with attached(isi, encoder):
        begin(isi)
        within = isi.maps(encoder, images())
    for name in alone:
        assert torch.equal(alone[name], within[name])
    assert isi.state_dict() == {"steps": 0}
    assert torch.equal(torch.get_rng_state(), noise)
    assert all(torch.equal(value, buffers[name]) for name, value in encoder.state_dict().items())
    assert isi.measured(None) == {}
