"""The multi-step loss: its shares, when it ends, and what homogenizers are shown of its passes."""

from __future__ import annotations

import pytest
import torch

from gradhomog import Homogenizer
from gradhomog_adapters._mamlpp.multi_step import shares
from gradhomog_adapters.mamlpp import MAMLPP
from tests.adapters import direct
from tests.adapters.few_shot import tasks
from tests.adapters.mamlpp.learners import learner


class Shift(Homogenizer):
    """Query features move by `size` times a direction of their task, and are doubled."""

    def __init__(self):
        self.size = 0.0
        self.directions = {}

    def transform(self, features, keys):
        slot, generator = keys[0].slot, torch.Generator().manual_seed(keys[0].slot)
        drawn = torch.randn(features.shape, generator=generator, dtype=features.dtype)
        along = self.directions.setdefault(slot, drawn[0])
        return 2 * features + self.size * along


def test_multi_step_shares_are_those_of_the_published_code_at_whole_epochs():
    # 5 steps, 10 epochs: 1/5 − e/50 but at least 0.03/5, and the last 1/5 + 4e/50 but at most 1 − 4 · 0.03/5.
    assert shares(5, 0, 10) == pytest.approx([0.2] * 5)
    assert shares(5, 5, 10) == pytest.approx([0.1] * 4 + [0.6])
    assert shares(5, 9, 10) == pytest.approx([0.02] * 4 + [0.92])
    assert shares(5, 99, 100) == pytest.approx([0.006] * 4 + [0.976])
    assert shares(5, 10, 10) == shares(5, 0, 0) == [0.0] * 4 + [1.0]
    assert shares(1, 0, 10) == [1.0]


def test_after_the_annealing_the_query_set_is_seen_once():
    made = learner(multi_step_steps=1, engine="loop")
    calls = []
    made.encoder.register_forward_pre_hook(lambda module, inputs: calls.append(len(inputs[0])))
    made.rows(tasks(1))
    assert calls == [6] * 3 + [9] * 3
    made.on_step_end()
    calls.clear()
    made.rows(tasks(1))
    assert calls == [6] * 3 + [9]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_cotangents_are_the_derivatives_by_a_move_of_the_features_of_all_passes(count):
    shifts = [Shift() for _ in range(count)]
    made, batch = learner(shifts, multi_step_steps=10), tasks(2)
    rows = made.rows(batch)
    assert len(rows.features) == len(rows.feature_grads) == count + 1
    for tap, shift in enumerate(shifts):
        losses = []
        for sign in (1, -1):
            shift.size = sign * 1e-6
            losses.append(made.rows(batch).losses)
        shift.size = 0.0
        along = torch.stack([shift.directions[slot] for slot in range(2)])
        numeric = (losses[0] - losses[1]) / 2e-6
        for cotangents, factor in ((rows.feature_grads[tap], 2.0), (rows.feature_grads[tap + 1], 1.0)):
            exact = (cotangents * along).sum((1, 2)) / factor
            torch.testing.assert_close(exact, numeric, rtol=1e-5, atol=1e-8)


def test_homogenizers_attach_and_are_gone_at_meta_test():
    def make(homogenizers):
        return MAMLPP(*direct.pictures(norm=True, flatten=True), homogenizers, inner_steps=2)

    direct.judge_homogenized(make, direct.tasks(shape=(1, 6, 6)))
