"""Typical norms of single rows and heavy tails, and what the recommendation reports about them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradhomog.diagnosis.labelled_gramian import LabelledGramian
from gradhomog.diagnosis.row_statistics import row_norms
from tests.diagnosis.synthetic import fed


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


def test_expected_gradients_with_different_norms_are_reported_once():
    drawn = rows((0.1, 0.1), (0.0, 0.0))
    drawn[:, 0, 0] += 1
    drawn[:, 1, 1] += 10
    found = diagnose(drawn)
    assert "norms_differ" in found
    assert "row_norms_differ" not in found


def test_zero_rows_have_no_typical_norm_and_few_batches_no_tails():
    drawn = rows((1.0, 1.0), (0.0, 3.0), batches=8)
    drawn[2, 0] = 0
    assert row_norms(LabelledGramian.of_rows(drawn)).log_differences.value[0, 1].isnan()
    assert not {"row_norms_differ", "heavy_tails"} & set(diagnose(drawn))
