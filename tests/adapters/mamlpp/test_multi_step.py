"""The multi-step loss: its weights, its end, and the features and gradients of its passes."""

from __future__ import annotations

import pytest
import torch

from gradhomog import Homogenizer
from gradhomog_adapters._mamlpp import loss_weights
from gradhomog_adapters.mamlpp import MAMLPP
from tests.adapters import checks
from tests.adapters.few_shot import tasks
from tests.adapters.mamlpp.learners import make_learner


class Shift(Homogenizer):
    """Doubles query features and adds `size` times a direction of their task."""

    def __init__(self):
        self.size = 0.0
        self.directions = {}

    def transform(self, features, keys):
        slot, generator = keys[0].slot, torch.Generator().manual_seed(keys[0].slot)
        drawn = torch.randn(features.shape, generator=generator, dtype=features.dtype)
        direction = self.directions.setdefault(slot, drawn[0])
        return 2 * features + self.size * direction


def test_multi_step_weights_are_those_of_the_published_code_at_whole_epochs():
    # 5 steps, 10 epochs: 1/5 − e/50 but at least 0.03/5, and the last 1/5 + 4e/50 but at most 1 − 4 · 0.03/5.
    assert loss_weights(5, 0, 10) == pytest.approx([0.2] * 5)
    assert loss_weights(5, 5, 10) == pytest.approx([0.1] * 4 + [0.6])
    assert loss_weights(5, 9, 10) == pytest.approx([0.02] * 4 + [0.92])
    assert loss_weights(5, 99, 100) == pytest.approx([0.006] * 4 + [0.976])
    assert loss_weights(5, 10, 10) == loss_weights(5, 0, 0) == [0.0] * 4 + [1.0]
    assert loss_weights(1, 0, 10) == [1.0]


def test_after_the_annealing_the_query_set_is_encoded_once():
    learner = make_learner(multi_step_steps=1, engine="loop")
    calls = []
    learner.encoder.register_forward_pre_hook(lambda module, inputs: calls.append(len(inputs[0])))
    learner.rows(tasks(1))
    assert calls == [6] * 3 + [9] * 3
    learner.on_step_end()
    calls.clear()
    learner.rows(tasks(1))
    assert calls == [6] * 3 + [9]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_feature_grads_are_sums_over_all_passes(count):
    shifts = [Shift() for _ in range(count)]
    learner, batch = make_learner(shifts, multi_step_steps=10), tasks(2)
    rows = learner.rows(batch)
    assert len(rows.features) == len(rows.feature_grads) == count + 1
    for tap, shift in enumerate(shifts):
        losses = []
        for sign in (1, -1):
            shift.size = sign * 1e-6
            losses.append(learner.rows(batch).losses)
        shift.size = 0.0
        direction = torch.stack([shift.directions[slot] for slot in range(2)])
        numeric = (losses[0] - losses[1]) / 2e-6
        for feature_grads, factor in ((rows.feature_grads[tap], 2.0), (rows.feature_grads[tap + 1], 1.0)):
            exact = (feature_grads * direction).sum((1, 2)) / factor
            torch.testing.assert_close(exact, numeric, rtol=1e-5, atol=1e-8)


def test_homogenizers_act_in_training_only():
    def make(homogenizers):
        return MAMLPP(*checks.image_networks(norm=True, flatten=True), homogenizers, inner_steps=2)

    checks.assert_homogenizers_act_in_training_only(make, checks.tasks(shape=(1, 6, 6)))
