"""Diagnosis of run files: rows of each kind of trainable, without side effects, and the written files."""

import copy

import pytest
import torch

from gradhomog.experiments.diagnose import diagnose, diagnose_trainable
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Run
from gradhomog.experiments.training.trainer import make_optimizer, make_trainable
from tests.experiments.conftest import SMALL

pytest.importorskip("sklearn")

TABLE = ["problem.name=regression", 'problem.targets=["worst radius", "worst texture"]', "network.width=8",
         "train.steps=40", 'homogenizers=["none", "pcgrad"]']  # fmt: skip
GLYPHS = ["problem.name=glyph_pairs", "problem.batch=8", "network.width=2", "train.steps=40"]
LANDSCAPE = ["problem.name=landscape", 'homogenizers=["none"]']


def make(settings):
    config = load(None, settings)
    return config, make_trainable(config, Run(config.learners[0], "none", config.seed_list[0]))


@pytest.mark.parametrize("settings", [SMALL, TABLE, GLYPHS, LANDSCAPE], ids=["learner", "table", "glyphs", "landscape"])
def test_rows_are_a_function_of_the_index_and_change_nothing(settings):
    config, trainable = make(settings)
    trainable.step(0, make_optimizer(config, trainable), inspect=False)
    before, random = copy.deepcopy(trainable.state_dict()), torch.get_rng_state()
    one = diagnose_trainable(trainable, 3)
    assert str(trainable.state_dict()) == str(before)
    assert torch.equal(random, torch.get_rng_state())
    assert one.record() == diagnose_trainable(trainable, 3).record()


def test_measured_batches_are_drawn_independently_and_not_without_replacement():
    """Five batches of one epoch have no common example; the first batches of five epochs have."""
    _, trainable = make(TABLE)
    per_epoch = len(trainable.data.train.inputs) // 64
    measured = [trainable._batch((10**9 + index) * per_epoch).inputs for index in range(5)]
    epoch = [trainable._batch(index).inputs for index in range(5)]
    assert len(torch.cat(epoch).unique(dim=0)) > len(torch.cat(measured).unique(dim=0))


def test_a_full_batch_and_a_landscape_have_no_noise():
    for settings in ([*TABLE, "problem.batch=10000"], LANDSCAPE):
        result = diagnose_trainable(make(settings)[1], 4)
        assert "no_noise" in [one.code for one in result.recommendation]
        assert float(result.expected.cosines.half_width.max()) < 1e-7


def test_the_default_is_five_percent_of_training_and_training_is_that_of_a_run():
    config, trainable = make(TABLE)
    progress = []
    found = diagnose(config, batches=4, seconds=0, progress=lambda *counts: progress.append(counts))
    assert (found.step, found.steps, found.overhead) == (2, 40, None)
    assert progress == [(done, 6) for done in range(1, 7)]
    optimizer = make_optimizer(config, trainable)
    for index in range(2):
        trainable.step(index, optimizer, inspect=False)
    assert found.result.record() == diagnose_trainable(trainable, 4).record()


def test_the_overhead_has_a_row_for_every_pipeline_except_separate_networks():
    config = load(None, [*TABLE[:-1], 'homogenizers=["none", "single-task", "pcgrad", "static | rlw"]'])
    found = diagnose(config, at=0, batches=3, seconds=0.01)
    assert found.overhead is not None
    assert [row.label for row in found.overhead.rows] == ["plain", "plain again", "pcgrad", "static"]
    assert "one training step" in found.render()
