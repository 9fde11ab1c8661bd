"""Statistics of rows: unbiased, with intervals that contain the true values; pairs of rows against loops."""

import math

import numpy as np
import pytest
import torch

from gradhomog.diagnosis.estimates import Estimate, jackknife
from gradhomog.diagnosis.labelled_gramian import LabelledGramian
from gradhomog.diagnosis.row_statistics import (
    expected_gradients,
    noise,
    norm_ratios,
    row_norms,
    signal_fractions,
    single_rows,
    step_alignment,
)
from gradhomog.experiments.analysis.statistics import mean_interval
from tests.diagnosis.synthetic import draw, fed, gramian, means


def pair(norm: float, cosine: float, params: int) -> torch.Tensor:
    """Two vectors of equal norm with this cosine."""
    found = torch.zeros(2, params, dtype=torch.float64)
    found[0, 0], found[1, 0], found[1, 1] = norm, norm * cosine, norm * math.sqrt(1 - cosine**2)
    return found


def uneven(seed: int) -> LabelledGramian:
    """Three domains in five batches, in which a domain has from zero to two rows."""
    batches = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 4])
    domains = torch.tensor([0, 1, 2, 0, 0, 1, 2, 0, 2, 1, 0])
    rows = torch.randn(11, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return LabelledGramian(rows @ rows.T, batches, domains, ("a", "b", "c"))


def looped(gramian, kernel, i, j, *, same, omit=None):
    """The mean of a kernel over ordered pairs of different rows, by a loop."""
    labels = list(zip(gramian.batches.tolist(), gramian.labels.tolist(), strict=True))
    values = [
        kernel[r, s]
        for r, (b, k) in enumerate(labels)
        for s, (c, m) in enumerate(labels)
        if (k, m) == (i, j) and (b == c) == same and r != s and omit not in (b, c)
    ]
    return float(torch.stack(values).mean()) if values else math.nan


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_means_over_pairs_are_those_of_a_loop_also_without_each_batch(seed, same):
    gramian = uneven(seed)
    kernel = gramian.gramian.sin()
    value, without = (gramian.same_batch if same else gramian.different_batches)(kernel)
    for i in range(3):
        for j in range(3):
            assert float(value[i, j]) == pytest.approx(looped(gramian, kernel, i, j, same=same), nan_ok=True)
            for b in range(5):
                expected = looped(gramian, kernel, i, j, same=same, omit=b)
                assert float(without[b, i, j]) == pytest.approx(expected, nan_ok=True)


def test_the_jackknife_of_a_mean_is_the_t_interval():
    values = torch.tensor([0.3, -1.0, 2.0, 5.0, 0.1], dtype=torch.float64)
    found, expected = jackknife(values.mean(), (values.sum() - values) / 4), mean_interval(values.tolist())
    assert float(found.value) == pytest.approx(expected.mean)
    assert float(found.half_width) == pytest.approx(expected.half_width)


def test_inner_products_are_unbiased_although_noise_is_shared_within_a_batch():
    mean = pair(0.5, 0.3, 4)
    grams = [LabelledGramian.of_rows(draw(mean, 4, seed, shared=1.0)) for seed in range(2000)]
    found = torch.stack([gramian.different_batches(gramian.gramian)[0] for gramian in grams])
    error = (found.mean(0) - mean @ mean.T) / (found.std(0) / math.sqrt(len(found)))
    assert error.abs().max() < 4
    naive = torch.stack([gramian.same_batch(gramian.gramian)[0][0, 1] for gramian in grams])
    assert naive.mean() > 3  # within batches: 4 parameters of shared noise, and 0.075 of the means


@pytest.mark.slow_after_first
@pytest.mark.parametrize("cosine", [-1.0, 0.0, 0.6, 1.0])
@pytest.mark.parametrize("norm", [2.0, 8.0])
def test_intervals_of_expectations_contain_the_true_values_in_about_95_percent_of_cases(norm, cosine):
    mean, repetitions, params = pair(norm, cosine, 80), 150, 80
    hits = dict.fromkeys(("norms", "cosines", "signal_fractions", "pooled_cosine", "inner_products"), 0.0)
    counts = dict(hits)
    true = {
        "norms": torch.full((2,), norm), "cosines": torch.tensor(cosine), "pooled_cosine": torch.tensor(cosine),
        "signal_fractions": torch.full((2,), norm**2 / (norm**2 + params)), "inner_products": mean @ mean.T,
    }  # fmt: skip
    for seed in range(repetitions):
        found = expected_gradients(LabelledGramian.of_rows(draw(mean, 30, seed)))
        for name, value in true.items():
            estimate = getattr(found, name)
            low, high = (
                (estimate.low[0, 1], estimate.high[0, 1]) if name == "cosines" else (estimate.low, estimate.high)
            )
            resolved = torch.isfinite(low)
            hits[name] += float(((low <= value) & (value <= high))[resolved].sum())
            counts[name] += float(resolved.sum())
    for name, hit in hits.items():
        assert counts[name] > repetitions / 2
        # 95 % minus four standard errors of 150 cases. Noise makes intervals too wide: see `jackknife`.
        assert hit / counts[name] > 0.88, name


@pytest.mark.parametrize(("kind", "coverage"), [("normal", 0.94), ("lognormal", 0.76), ("student", 0.79)])
def test_intervals_of_signal_fractions_contain_the_true_value_as_often_as_the_guide_states(kind, coverage):
    """Rows are scaled by a factor with heavy tails; the mean of its square is known. See docs/guide/diagnose.md."""
    batches, params, repetitions, hits = 48, 200, 150, 0
    energy = {"normal": 1.0, "lognormal": math.e**2, "student": 3.0}[kind]
    for seed in range(repetitions):
        rows = draw(torch.zeros(1, params, dtype=torch.float64), batches, seed)
        scale = draw(torch.zeros(1, 3, dtype=torch.float64), batches, seed + repetitions)
        if kind == "lognormal":
            rows *= scale[..., :1].exp()
        if kind == "student":  # with 3 degrees of freedom
            rows *= (3 / scale.square().sum(-1, keepdim=True)).sqrt()
        rows[..., 0] += math.sqrt(energy * params)  # signal fraction 1/2
        found = signal_fractions(LabelledGramian.of_rows(rows))
        hits += bool(found.low <= 0.5 <= found.high)
    assert hits / repetitions > coverage - 4 * math.sqrt(coverage * (1 - coverage) / repetitions)


def test_equal_expected_gradients_under_large_noise_have_cosine_1_and_their_rows_cosine_0():
    rows = draw(pair(8, 1.0, 2000), 48, seed=0)
    gramian = LabelledGramian.of_rows(rows)
    found, single = expected_gradients(gramian), single_rows(gramian)
    assert found.cosines.low[0, 1] < 1 < found.cosines.high[0, 1]
    assert found.cosines.half_width[0, 1] < 0.5
    assert abs(float(single.mean_cosine.value)) < 0.06
    assert float(single.conflict_rate.value) > 0.02
    rate = found.aligned_conflict_rates
    assert rate.low[0, 1] < single.independent_conflict_rate.value < rate.high[0, 1]


def test_without_signal_norms_and_cosines_are_unresolved_and_the_signal_may_be_zero():
    found = expected_gradients(LabelledGramian.of_rows(draw(torch.zeros(2, 300, dtype=torch.float64), 48, seed=0)))
    assert found.norms.value.isnan().all()
    assert found.cosines.value.isnan().all()
    assert found.pooled_cosine.value.isnan()
    assert found.pooled_cosine.half_width.isnan()
    assert (found.signal_fractions.low < 0).all()
    assert (found.signal_fractions.high > 0).all()


def test_single_rows_have_the_norms_and_cosines_of_a_loop():
    rows = draw(pair(1, 0.5, 7), 6, seed=2)
    found = single_rows(LabelledGramian.of_rows(rows))
    cosines = [torch.nn.functional.cosine_similarity(*batch, dim=0) for batch in rows]
    torch.testing.assert_close(found.norms.value, rows.norm(dim=2).mean(0))
    torch.testing.assert_close(found.cosines.value[0, 1], torch.stack(cosines).mean())
    torch.testing.assert_close(found.mean_cosine.value, torch.stack(cosines).mean())
    torch.testing.assert_close(found.conflict_rates.value[0, 1], (torch.stack(cosines) < 0).double().mean())
    assert found.cosines.value.diagonal().isnan().all()  # no batch has two rows of a domain


def test_a_pair_that_no_batch_has_does_not_hide_the_mean_of_the_others():
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batches, domains = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 1, 0, 1, 0, 1])
    found = single_rows(LabelledGramian(rows @ rows.T, batches, domains, ("a", "b", "absent")))
    assert found.cosines.value[0, 2].isnan()
    torch.testing.assert_close(found.mean_cosine.value, found.cosines.value[0, 1])


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
def test_intervals_of_noise_contain_the_true_values_in_about_95_percent_of_cases(shared):
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


def test_the_step_harms_a_task_exactly_if_it_is_shorter_than_its_conflict():
    """n₁ < −c n₂, by norms and cosines without noise."""
    for first in (0.5, 0.7):
        rows = torch.tensor([[first, 0.0], [-0.6, 0.8]], dtype=torch.float64).repeat(3, 1, 1)
        found = step_alignment(LabelledGramian.of_rows(rows)).products
        assert isinstance(found, Estimate)
        assert bool(found.high[0] < 0) == (first < 0.6)


def rows(deviations, tails, batches=60, params=100, seed=0) -> torch.Tensor:
    """Rows `[batches, tasks, params]` without signal, with norms of a log-normal distribution for each task."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(batches, len(tails), params, generator=generator, dtype=torch.float64)
    logs = torch.randn(batches, len(tails), 1, generator=generator, dtype=torch.float64)
    return torch.tensor(deviations)[:, None] * noise * (torch.tensor(tails)[:, None] * logs).exp()


def diagnose(drawn: torch.Tensor) -> dict[str, str]:
    return {one.code: one.text for one in fed(drawn, ["a", "b"]).recommendation}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
def test_statistics_are_those_of_the_norms_in_any_unit(dtype, scale):
    drawn = (rows((1.0, 3.0), (0.5, 0.1)) * scale).to(dtype)
    found = row_norms(LabelledGramian.of_rows(drawn))
    norms = np.linalg.norm(drawn.double().numpy() / scale, axis=2)
    expected = np.log(norms[:, 1]).mean() - np.log(norms[:, 0]).mean()
    assert float(found.log_differences.value[1, 0]) == pytest.approx(expected, rel=1e-5)
    shares = (norms**2).mean(0) ** 2 / (norms**4).mean(0)
    np.testing.assert_allclose(found.effective_shares.value, shares, rtol=1e-5)


def test_the_share_is_one_for_equal_norms_and_one_row_of_all_for_a_single_long_row():
    equal = torch.ones(8, 1, 3, dtype=torch.float64)
    assert float(row_norms(LabelledGramian.of_rows(equal)).effective_shares.value) == pytest.approx(1)
    equal[3] *= 1e6
    assert float(row_norms(LabelledGramian.of_rows(equal)).effective_shares.value) == pytest.approx(1 / 8, abs=1e-6)


def test_the_interval_of_typical_norms_contains_the_true_ratio():
    covered = 0
    for seed in range(100):
        found = row_norms(LabelledGramian.of_rows(rows((1.0, 4.0), (1.0, 1.0), batches=20, seed=seed))).log_differences
        covered += bool(found.low[1, 0] < np.log(4.0) < found.high[1, 0])
    assert covered >= 88  # 95 expected


def test_noise_of_different_size_is_reported_as_different_norms_of_single_rows():
    found = diagnose(rows((1.0, 5.0), (0.0, 0.0)))
    assert "norms_differ" not in found
    assert "differ 5.0 × (4." in found["row_norms_differ"]
    assert "(b over a)" in found["row_norms_differ"]


def test_a_few_long_rows_are_reported_as_heavy_tails():
    found = diagnose(rows((1.0, 1.0), (0.1, 2.0)))
    assert "effective share of b (" in found["heavy_tails"]
    assert " a (" not in found["heavy_tails"]


def test_noise_of_one_size_has_neither():
    for seed in range(20):
        assert not {"row_norms_differ", "heavy_tails"} & set(diagnose(rows((1.0, 1.0), (0.2, 0.2), seed=seed)))


def test_zero_rows_have_no_typical_norm_and_few_batches_no_tails():
    drawn = rows((1.0, 1.0), (0.0, 3.0), batches=8)
    drawn[2, 0] = 0
    assert row_norms(LabelledGramian.of_rows(drawn)).log_differences.value[0, 1].isnan()
    assert not {"row_norms_differ", "heavy_tails"} & set(diagnose(drawn))
