"""`Learner.diagnose`: the rows of a learner by domain, without side effects."""

import copy

import pytest
import torch

import gradhomog
from gradhomog.errors import DataError, OptionError
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Run
from gradhomog.experiments.training.meta_learning import MetaLearning
from gradhomog.learners.learner_rows import FIRST_BATCH
from tests.experiments.conftest import SMALL

GLYPHS = [
    'domains.train=["glyphs:latin", "glyphs:greek", "glyphs:arrows"]', 'domains.test=["glyphs:dingbats"]',
    "network.width=2", "network.size=16", "episodes.ways=2", "episodes.queries=2", "episodes.tasks=2",
    "train.inner_steps=1", "learner=fomaml",
]  # fmt: skip


def trained(settings=SMALL, pipeline="none") -> MetaLearning:
    config = load(None, settings)
    return MetaLearning(config, Run(config.learners[0], pipeline, 0))


def test_the_diagnosis_is_that_of_the_encoders_rows_by_domain():
    found = trained()
    diagnosis = gradhomog.Diagnosis()
    for index in range(5):
        batch = found.source.train.batch(FIRST_BATCH + index)
        rows = found.learner.rows(batch).jacobian
        diagnosis.add({name: rows[name] for name in rows if name.startswith("encoder.")}, batch.domains)
    assert found.learner.diagnose(found.source.train, batches=5).record() == diagnosis.result().record()


def test_an_iterable_of_batches_is_read_no_further_than_needed():
    found = trained()
    batches = (found.source.train.batch(index) for index in range(10))
    result = found.learner.diagnose(batches, batches=4)
    assert (result.batches, len(list(batches))) == (4, 6)
    lists = [list(found.source.train.batch(index)) for index in range(3)]
    assert found.learner.diagnose(lists, batches=3).batches == 3


def test_neither_the_learner_nor_its_homogenizers_nor_random_numbers_change():
    found = trained(GLYPHS, "isi + rotate + reweight")
    found.step(0, torch.optim.Adam(found.parameters()), inspect=False)
    pipe, random = found.learner.homogenizers, torch.get_rng_state()
    before = copy.deepcopy(found.state_dict())
    found.learner.diagnose(found.source.train, batches=9)
    assert str(found.state_dict()) == str(before)
    assert torch.equal(random, torch.get_rng_state())
    assert found.learner.homogenizers is pipe
    assert pipe.steps == 1
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in found.parameters())


def test_tasks_without_domains_are_a_sample_of_one_distribution():
    found = trained()
    batches = [
        gradhomog.TaskBatch(batch.support_x, batch.support_y, batch.query_x, batch.query_y)
        for batch in map(found.source.train.batch, range(4))
    ]
    result = found.learner.diagnose(batches, batches=4)
    assert result.tasks == ("tasks",)
    assert "pair" not in result.table().split("Recommendation")[0]


def test_one_batch_or_too_few_batches_raise():
    found = trained()
    with pytest.raises(DataError, match="got one task batch"):
        found.learner.diagnose(found.source.train.batch(0))
    with pytest.raises(OptionError, match="`batches` must be an integer ≥ 3; got 2"):
        found.learner.diagnose(found.source.train, batches=2)
    with pytest.raises(OptionError, match="got -1"):
        found.learner.diagnose([found.source.train.batch(0)], batches=-1)


def test_a_stream_of_tasks_and_a_stream_that_ends_early_raise():
    found = trained()
    with pytest.raises(DataError, match="must contain batches of tasks; got a task"):
        found.learner.diagnose(list(found.source.train.batch(0)))
    with pytest.raises(DataError, match="`stream` must have 48 batches; got 3"):
        found.learner.diagnose(map(found.source.train.batch, range(3)))
