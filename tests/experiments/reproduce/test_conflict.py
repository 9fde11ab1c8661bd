"""Conflict of domains in the rows of a learner: against rows by hand, without side effects, resumed exactly."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from gradhomog.diagnosis.learner_rows import FIRST_BATCH
from gradhomog.errors import ConfigError, DataError
from gradhomog.experiments.reproduce.measure_conflict import (
    RESULTS,
    UNRESOLVED,
    DomainConflict,
    domain_table,
    measure_conflict,
    measure_rows,
    measured_stream,
    pair_table,
    render,
    stage_table,
)
from gradhomog.experiments.results.runs import Run
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.training.meta_learning import MetaLearning
from tests.experiments.conftest import SMALL

GLYPHS = [
    'domains.train=["glyphs:latin", "glyphs:greek", "glyphs:arrows"]', 'domains.test=["glyphs:dingbats"]',
    "network.width=2", "network.size=16", "episodes.ways=2", "episodes.queries=2", "episodes.tasks=2",
    "train.inner_steps=1", "learner=fomaml",
]  # fmt: skip


def trained(config, pipeline="none"):
    return MetaLearning(config, Run(config.learners[0], pipeline, 0))


def same(one: DomainConflict, other: DomainConflict) -> None:
    assert one.record() == other.record()


@pytest.fixture
def functions():
    return load(None, SMALL)


def test_the_measurement_is_that_of_rows_by_hand(functions):
    """Norms and cosines of the encoder's rows, and products of their means, in a loop over the same batches."""
    study = trained(functions)
    stream = measured_stream(study)
    found = measure_rows(study.learner, stream, 5, step=7)
    rows = {name: [] for name in found.domains}
    for index in range(5):
        batch = stream.batch(FIRST_BATCH + index)
        jacobian = study.learner.rows(batch).jacobian
        flat = torch.cat([value.flatten(1) for name, value in jacobian.items() if name.startswith("encoder.")], 1)
        for name, row in zip(batch.domains, flat.double(), strict=True):
            rows[name].append(row)
    stacked = torch.stack([torch.stack(rows[name]) for name in found.domains])  # [domains, batches, params]
    [plain] = found.stages
    assert (found.step, found.batches, plain.name) == (7, 5, "plain")
    torch.testing.assert_close(plain.single.norms.value, stacked.norm(dim=2).mean(1), rtol=1e-4, atol=1e-6)
    cosines = torch.nn.functional.cosine_similarity(stacked[0], stacked[1], dim=1)
    torch.testing.assert_close(plain.single.cosines.value[0, 1], cosines.mean(), rtol=1e-4, atol=1e-5)
    # Σ_{b≠b'} ⟨g_b, h_b'⟩ = ⟨Σ g, Σ h⟩ − Σ_b ⟨g_b, h_b⟩
    first, second = stacked[0], stacked[1]
    between = (first.sum(0) @ second.sum(0) - (first * second).sum()) / 20
    torch.testing.assert_close(plain.expected.inner_products.value[0, 1], between, rtol=1e-4, atol=1e-6)
    assert plain.largest_norm == pytest.approx(float(stacked.norm(dim=2).max()), rel=1e-4)
    assert plain.bound == pytest.approx(2 * plain.largest_norm)
    assert 0 < plain.largest_distance <= plain.bound


def test_measuring_changes_neither_learner_nor_homogenizers_nor_random_numbers():
    study = trained(load(None, GLYPHS), "isi + rotate + reweight")
    optimizer = torch.optim.Adam(study.parameters())
    study.step(0, optimizer, inspect=False)
    pipe, before = study.learner.homogenizers, study.state_dict()
    values = torch.cat([value.flatten() for value in before["encoder"].values()])
    state, random = study.learner.homogenizers.state_dict(), torch.get_rng_state()
    measure_rows(study.learner, measured_stream(study), 3)
    after = torch.cat([value.flatten() for value in study.state_dict()["encoder"].values()])
    assert torch.equal(values, after)
    assert torch.equal(random, torch.get_rng_state())
    assert study.learner.homogenizers is pipe
    assert str(pipe.state_dict()) == str(state)


def test_homogenizers_draw_other_random_numbers_in_every_batch(functions, monkeypatch):
    """With the same tasks in every batch, the only noise is that of the homogenizer."""
    study = trained(functions, "rlw")
    stream = measured_stream(study)
    batch = stream.batch(0)
    monkeypatch.setattr(stream, "batch", lambda index: batch)
    plain, weighted = measure_rows(study.learner, stream, 6).stages
    torch.testing.assert_close(plain.expected.signal_fractions.value, torch.ones(3, dtype=torch.float64))
    assert (weighted.expected.signal_fractions.value < 0.999).all()


def test_more_domains_than_tasks_per_batch_are_measured_in_turn():
    study = trained(load(None, GLYPHS))
    found = measure_rows(study.learner, measured_stream(study), 9)
    assert found.domains == ("glyphs:latin", "glyphs:greek", "glyphs:arrows")
    assert found.stages[0].single.norms.value.isfinite().all()
    assert found.stages[0].expected.inner_products.value.isfinite().all()


def with_pipeline(config, pipeline, **train):
    train = dataclasses.replace(config.train, **train)
    return dataclasses.replace(config, homogenizers=[pipeline], train=train)


def test_a_continued_measurement_equals_an_uninterrupted_one(functions, tmp_path):
    config, steps, records = with_pipeline(functions, "reweight"), [0, 2, 4], []
    whole = measure_conflict(config, steps, 3, tmp_path / "whole")
    assert [point.step for point in whole] == steps
    measure_conflict(config, steps[:2], 3, tmp_path / "parts")
    found = measure_conflict(config, steps, 3, tmp_path / "parts", records.append)
    for one, other in zip(found, whole, strict=True):
        same(one, other)
    assert [record["step"] for record in records if record["event"] == "step"] == [3, 4]
    records.clear()
    same(measure_conflict(config, [0, 4], 3, tmp_path / "parts", records.append)[1], whole[2])
    assert records == []  # all points were measured before


def test_a_measurement_that_was_interrupted_between_points_continues_from_its_checkpoint(functions, tmp_path):
    config = with_pipeline(functions, "reweight", checkpoint_every=2)
    whole = measure_conflict(config, [0, 4], 3, tmp_path / "whole")

    def interrupt(record):
        if record["event"] == "step" and record["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_conflict(config, [0, 4], 3, tmp_path / "parts", interrupt)
    records = []
    found = measure_conflict(config, [0, 4], 3, tmp_path / "parts", records.append)
    assert [record["step"] for record in records if record["event"] == "step"] == [3, 4]
    for one, other in zip(found, whole, strict=True):
        same(one, other)


def test_the_folder_of_another_configuration_is_refused(functions, tmp_path):
    config = with_pipeline(functions, "none")
    measure_conflict(config, [0], 3, tmp_path)
    with pytest.raises(ConfigError, match="another configuration"):
        measure_conflict(config, [0], 4, tmp_path)
    (tmp_path / RESULTS).write_text("[]")
    with pytest.raises(ConfigError, match="not a measurement"):
        measure_conflict(config, [0], 3, tmp_path)


def test_too_few_batches_domains_or_tasks_and_rows_that_are_not_finite_raise(functions):
    study = trained(functions)
    stream = measured_stream(study)
    with pytest.raises(ConfigError, match='and 3 batches; got "strong", 3, 3 and 2'):
        measure_rows(study.learner, stream, 2)
    weak = dataclasses.replace(functions, domains=dataclasses.replace(functions.domains, setting="weak"))
    with pytest.raises(ConfigError, match='got "weak", 3, 3 and 3'):
        measure_rows(study.learner, trained(weak).source.train, 3)
    with torch.no_grad():
        next(iter(study.learner.encoder.parameters())).fill_(math.nan)
    with pytest.raises(DataError, match="NaN or infinity"):
        measure_rows(study.learner, stream, 3)


def test_the_text_has_a_line_for_every_stage_domain_and_pair(functions, tmp_path):
    points = measure_conflict(with_pipeline(functions, "static + pcgrad"), [0, 1], 4, tmp_path)
    text = render(points)
    stages = stage_table(points).rows
    assert [row[:2] for row in stages[:3]] == [["0", "plain"], ["", "+ static"], ["", "+ pcgrad"]]
    assert len(stages) == 6
    assert len(domain_table(points[1]).rows) == 3
    assert [row[0] for row in pair_table(points[1]).rows] == [
        "functions:sinusoid, functions:line", "functions:sinusoid, functions:step", "functions:line, functions:step",
    ]  # fmt: skip
    assert UNRESOLVED in text
    assert "nan" not in text
    for point in points:
        same(DomainConflict.from_record(point.record()), point)
