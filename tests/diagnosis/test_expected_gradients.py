"""Expected gradients: unbiased, with intervals that contain the true values; pairs of rows against loops."""

from __future__ import annotations

import math

import pytest
import torch

from gradhomog.diagnosis.estimates import jackknife
from gradhomog.diagnosis.labelled_gramian import LabelledGramian
from gradhomog.diagnosis.row_statistics import expected_gradients, signal_fractions, single_rows
from gradhomog.errors import OptionError
from gradhomog.experiments.analysis.statistics import mean_interval
from tests.diagnosis.synthetic import draw


def means(norm: float, cosine: float, params: int) -> torch.Tensor:
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
    mean = means(0.5, 0.3, 4)
    grams = [LabelledGramian.of_rows(draw(mean, 4, seed, shared=1.0)) for seed in range(2000)]
    found = torch.stack([gramian.different_batches(gramian.gramian)[0] for gramian in grams])
    error = (found.mean(0) - mean @ mean.T) / (found.std(0) / math.sqrt(len(found)))
    assert error.abs().max() < 4
    naive = torch.stack([gramian.same_batch(gramian.gramian)[0][0, 1] for gramian in grams])
    assert naive.mean() > 3  # within batches: 4 parameters of shared noise, and 0.075 of the means


@pytest.mark.parametrize("cosine", [-1.0, 0.0, 0.6, 1.0])
@pytest.mark.parametrize("norm", [2.0, 8.0])
def test_intervals_contain_the_true_values_in_about_95_percent_of_cases(norm, cosine):
    mean, repetitions, params = means(norm, cosine, 80), 150, 80
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
    rows = draw(means(8, 1.0, 2000), 48, seed=0)
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


def test_rows_without_noise_have_their_exact_cosines_and_distances():
    rows = torch.tensor([[3.0, 0.0], [0.0, 4.0], [-3.0, 0.0]]).repeat(5, 1, 1)
    found = expected_gradients(LabelledGramian.of_rows(rows))
    expected = torch.tensor([[1, 0, -1], [0, 1, 0], [-1, 0, 1]], dtype=torch.float64)
    torch.testing.assert_close(found.cosines.value, expected)
    torch.testing.assert_close(found.cosines.half_width, torch.zeros(3, 3, dtype=torch.float64))
    torch.testing.assert_close(found.distances.value[0], torch.tensor([0.0, 5.0, 6.0], dtype=torch.float64))
    torch.testing.assert_close(found.signal_fractions.value, torch.ones(3, dtype=torch.float64))


def test_single_rows_have_the_norms_cosines_and_distances_of_a_loop():
    rows = draw(means(1, 0.5, 7), 6, seed=2)
    found = single_rows(LabelledGramian.of_rows(rows))
    cosines = [torch.nn.functional.cosine_similarity(*batch, dim=0) for batch in rows]
    torch.testing.assert_close(found.norms.value, rows.norm(dim=2).mean(0))
    torch.testing.assert_close(found.cosines.value[0, 1], torch.stack(cosines).mean())
    torch.testing.assert_close(found.mean_cosine.value, torch.stack(cosines).mean())
    torch.testing.assert_close(found.distances.value[0, 1], (rows[:, 0] - rows[:, 1]).norm(dim=1).mean())
    torch.testing.assert_close(found.conflict_rates.value[0, 1], (torch.stack(cosines) < 0).double().mean())
    assert found.cosines.value.diagonal().isnan().all()  # no batch has two rows of a domain
    assert found.independent_cosines.value.isfinite().all()


def test_a_pair_that_no_batch_has_does_not_hide_the_mean_of_the_others():
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batches, domains = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 1, 0, 1, 0, 1])
    found = single_rows(LabelledGramian(rows @ rows.T, batches, domains, ("a", "b", "absent")))
    assert found.cosines.value[0, 2].isnan()
    torch.testing.assert_close(found.mean_cosine.value, found.cosines.value[0, 1])


def test_too_few_batches_raise():
    rows = draw(means(1, 0, 5), 2, seed=0)
    with pytest.raises(OptionError, match="at least 3 batches; got 2"):
        expected_gradients(LabelledGramian.of_rows(rows))
