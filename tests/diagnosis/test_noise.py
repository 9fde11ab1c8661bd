"""Noise scales, correlations, norm ratios and alignment against known expectations and covariances."""

import math

import pytest
import torch

from gradhomog.diagnosis.estimates import Estimate
from gradhomog.diagnosis.labelled_gramian import LabelledGramian
from gradhomog.diagnosis.row_statistics import noise, norm_ratios, step_alignment
from tests.diagnosis.synthetic import draw, gramian, means

PARAMS = 60


def test_the_noise_scale_is_that_of_two_batch_sizes():
    """McCandlish et al., appendix A.1: gradients of 1 and of B examples, here batches."""
    rows = draw(means((2.0, 1.0), (0.0, 3.0), params=PARAMS), 12, seed=0)
    found = noise(LabelledGramian.of_rows(rows))
    small, big = rows.square().sum(2).mean(0), rows.mean(0).square().sum(1)  # E|G_1|², |G_12|²
    signal = (12 * big - small) / (12 - 1)
    trace = (small - big) / (1 - 1 / 12)
    torch.testing.assert_close(found.traces.value, trace)
    torch.testing.assert_close(found.noise_scales.value, trace / signal)


@pytest.mark.parametrize("shared", [0.0, 1.0])
def test_intervals_contain_the_true_values_in_about_95_percent_of_cases(shared):
    mean = means((6.0, 0.0), (-1.5, 2.0), params=PARAMS)  # norms 6 and 2.5, cosine −0.6
    step, variance = mean.mean(0), 1 + shared**2
    true = {
        "traces": PARAMS * variance,
        "noise_scales": PARAMS * variance / mean.square().sum(1),
        "correlations": shared**2 / variance,
        "step_noise_scale": PARAMS * (0.5 + shared**2) / step.square().sum(),
        "norm_ratios": 6 / 2.5,
        "products": mean @ step,
        "cosines": mean @ step / mean.norm(dim=1) / step.norm(),
    }
    hits, counts = dict.fromkeys(true, 0.0), dict.fromkeys(true, 0.0)
    for seed in range(150):
        gram = gramian(mean, 30, seed, shared=shared)
        estimates = {**vars(noise(gram)), "norm_ratios": norm_ratios(gram), **vars(step_alignment(gram))}
        for name, value in true.items():
            place = (0, 1) if name in ("correlations", "norm_ratios") else ...
            low, high = estimates[name].low[place], estimates[name].high[place]
            hits[name] += float(((low <= value) & (value <= high)).sum())
            counts[name] += float(low.isfinite().sum())
    for name, hit in hits.items():
        assert counts[name] > 75, name
        # 95 % minus four standard errors of 150 cases. Noise makes intervals too wide: see `jackknife`.
        assert hit / counts[name] > 0.88, name


def test_shared_noise_is_a_correlation_within_batches_and_part_of_the_noise_of_the_step():
    mean = means((4.0, 0.0), (0.0, 4.0), params=400)
    found = noise(gramian(mean, 60, seed=0, shared=2.0))
    assert float(found.correlations.value[0, 1]) == pytest.approx(4 / 5, abs=0.03)
    assert float(found.step_noise_scale.value) == pytest.approx(400 * (0.5 + 4) / 8, rel=0.25)
    alone = noise(gramian(mean, 60, seed=0))
    assert alone.correlations.low[0, 1] < 0 < alone.correlations.high[0, 1]


def test_tasks_of_one_domain_in_a_batch_have_a_correlation_too():
    rows = draw(means((1.0,), (1.0,), params=50), 40, seed=3, shared=1.0)
    gram = LabelledGramian.of_rows(rows)
    pooled = LabelledGramian(gram.gramian, gram.batches, torch.zeros_like(gram.labels), ("domain",))
    found = noise(pooled).correlations
    assert found.low[0, 0] < 0.5 < found.high[0, 0]
    assert noise(gram).correlations.value.diagonal().isnan().all()  # no batch has two rows of a task


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_rows_without_noise_have_no_noise_and_no_nan(scale):
    rows = scale * torch.tensor([[3.0, 0.1], [0.3, 0.7], [-3.1, 0.2]]).repeat(5, 1, 1)
    gram = LabelledGramian.of_rows(rows)
    found = noise(gram)
    assert found.noise_scales.high.tolist() == [0, 0, 0]
    assert float(found.step_noise_scale.high) == 0
    off = ~torch.eye(3, dtype=torch.bool)
    assert found.correlations.value[off].tolist() == [0] * 6
    assert found.correlations.half_width[off].tolist() == [0] * 6
    energy = float(rows.double().square().sum(2).max())
    assert found.traces.value.abs().max() < 1e-12 * energy
    ratios = norm_ratios(gram)
    torch.testing.assert_close(ratios.low, ratios.high)
    assert ratios.value.isfinite().all()
    assert step_alignment(gram).cosines.value.isfinite().all()


def test_a_task_with_zero_rows_has_no_noise_scale_and_does_not_hide_the_others():
    rows = draw(means((3.0,), (3.0,), params=10), 8, seed=0)
    rows[:, 1] = 0
    found = noise(LabelledGramian.of_rows(rows))
    assert found.noise_scales.value.isnan().tolist() == [False, True]
    assert float(found.correlations.value[0, 1]) == 0
    assert bool(found.step_noise_scale.value.isfinite())


def test_without_measurable_signal_the_noise_scale_has_a_lower_end_only():
    found = noise(gramian(means((0.0,), params=300), 30, seed=0)).noise_scales
    assert float(found.low) > 50
    assert float(found.high) == math.inf


def test_the_step_harms_a_task_exactly_if_it_is_shorter_than_its_conflict():
    """n₁ < −c n₂, by norms and cosines without noise."""
    for first in (0.5, 0.7):
        rows = torch.tensor([[first, 0.0], [-0.6, 0.8]], dtype=torch.float64).repeat(3, 1, 1)
        found = step_alignment(LabelledGramian.of_rows(rows)).products
        assert isinstance(found, Estimate)
        assert bool(found.high[0] < 0) == (first < 0.6)
