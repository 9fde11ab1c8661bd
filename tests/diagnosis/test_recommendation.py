"""Rules of the recommendation on rows with known expectations and noise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import gradhomog
from gradhomog.diagnosis.recommendation import METHODS_FOR_CONFLICT, METHODS_FOR_NORMS
from gradhomog.registry import installed
from tests.diagnosis.synthetic import draw, means


def diagnosed(*rows, params=200, batches=40, seed=0, noise=1.0, shared=0.0) -> gradhomog.DiagnosisResult:
    found = gradhomog.Diagnosis(["a", "b", "c"][: len(rows)])
    for batch in draw(means(*rows, params=params), batches, seed, noise, shared):
        found.add(batch)
    return found.result()


def codes(*rows, **options) -> list[str]:
    return [one.code for one in diagnosed(*rows, **options).recommendation]


def text(found, code) -> str:
    [sentence] = [one.text for one in found.recommendation if one.code == code]
    return sentence


def test_equal_expected_gradients_under_noise_are_no_conflict_and_need_averages():
    found = diagnosed((4.0, 0.0), (4.0, 1.0))
    assert [one.code for one in found.recommendation] == ["no_conflict", "average_more", "plain_mean"]
    assert "conflict do so by noise" in text(found, "no_conflict")
    assert float(found.single.conflict_rate.value) > 0.1


def test_opposite_expected_gradients_are_conflict_although_noise_dominates():
    found = diagnosed((6.0, 0.0), (-3.0, 4.0))
    assert [one.code for one in found.recommendation] == ["conflict", "average_more"]
    assert text(found, "conflict").startswith("real conflict between a and b (-0.")
    assert "decreases all losses" in text(found, "conflict")  # norms 6 and 5, cosine −0.6


def test_a_short_gradient_in_conflict_with_a_long_one_is_harmed():
    found = diagnosed((3.0, 0.0), (-12.0, 16.0), noise=0.1)  # norms 3 and 20, cosine −0.6
    assert [one.code for one in found.recommendation] == ["harmed_task", "conflict", "norms_differ", "little_noise"]
    assert "increases the loss of a (-0." in text(found, "harmed_task")
    assert "decreases all losses" not in text(found, "conflict")
    assert "× (6." in text(found, "norms_differ")
    assert "(b over a)" in text(found, "norms_differ")


def test_without_signal_conflict_is_unresolved_and_the_number_of_batches_grows():
    found = diagnosed((0.0,), (0.0,))
    assert [one.code for one in found.recommendation] == ["unresolved", "average_more"]
    assert "1 of 1 pairs (a and b)" in text(found, "unresolved")
    assert "with 40 batches; at least" in text(found, "unresolved")


def test_orthogonal_expected_gradients_with_little_noise_are_no_conflict():
    assert codes((5.0, 0.0), (0.0, 5.0), noise=0.01) == ["no_conflict", "little_noise", "plain_mean"]


def test_one_unresolved_pair_prevents_the_claim_of_no_conflict():
    found = diagnosed((5.0, 0.0), (5.0, 0.5), (0.2, 0.0))
    assert "unresolved" in [one.code for one in found.recommendation]
    assert "no_conflict" not in [one.code for one in found.recommendation]
    assert "2 of 3 pairs" in text(found, "unresolved")


def test_shared_noise_is_reported_with_its_correlation():
    found = diagnosed((6.0, 0.0), (0.0, 6.0), shared=1.0)
    assert "a and b (0.50 ±" in text(found, "shared_noise") or "a and b (0.4" in text(found, "shared_noise")
    assert "shared_noise" not in codes((6.0, 0.0), (0.0, 6.0))


def test_noise_of_the_size_of_the_signal_is_reported_as_such():
    assert "noise_like_signal" in codes((2.0, 0.0), (2.0, 0.0), params=8)  # noise scale of the mean: 8 / 2 / 4 = 1


def test_gradients_of_the_summed_loss_give_this_sentence_only():
    found = gradhomog.Diagnosis()
    parameter = torch.nn.Parameter(torch.ones(3))
    for seed in range(4):
        x = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed))
        total = (x @ parameter).square().sum()
        rows = []
        for _ in range(2):  # the mistake: one loss is differentiated for each task
            rows.append(torch.autograd.grad(total, parameter, retain_graph=True)[0])
        found.add(torch.stack(rows))
    assert [one.code for one in found.result().recommendation] == ["summed_loss"]


def test_rows_of_a_single_parameter_are_not_mistaken_for_a_summed_loss():
    assert "summed_loss" not in codes((3.0,), (-2.0,), params=1, noise=0.1)


def test_the_total_loss_and_a_zero_gradient_are_named():
    rows = draw(means((3.0, 0.0), (0.0, 2.0), params=20), 8, seed=0, noise=0.2)
    found = gradhomog.Diagnosis(["a", "b", "total"])
    for batch in torch.cat([rows, rows.sum(1, keepdim=True)], dim=1):
        found.add(batch)
    assert text(found.result(), "total_as_task").startswith("the row of total is")
    found = gradhomog.Diagnosis(["a", "b", "done"])
    for batch in torch.cat([rows, 0 * rows[:, :1]], dim=1):
        found.add(batch)
    assert text(found.result(), "zero_gradient").startswith("all rows of done are zero")


def test_one_task_gets_a_sentence_about_its_noise_only():
    assert codes((1.0,)) == ["average_more"]
    assert codes((1.0,), noise=0.0) == ["no_noise"]


@pytest.mark.parametrize("cosine", [0.0, 0.3])
def test_false_conflicts_are_rarer_than_5_percent_also_among_many_pairs(cosine):
    """Six tasks with equal pairwise cosines: 15 pairs, of which none conflicts."""
    gram = torch.full((6, 6), cosine, dtype=torch.float64).fill_diagonal_(1.0)
    mean = torch.zeros(6, 40, dtype=torch.float64)
    mean[:, :6] = 6 * torch.linalg.cholesky(gram)
    false = 0
    for seed in range(60):
        found = gradhomog.Diagnosis()
        for batch in draw(mean, 20, seed):
            found.add(batch)
        false += any(one.code in ("conflict", "harmed_task") for one in found.result().recommendation)
    assert false <= 7  # at most 3 expected, with a standard deviation of 1.7


def test_recommended_methods_exist():
    names = {info.name for info in installed().list("homogenizers")}
    assert {*METHODS_FOR_CONFLICT, *METHODS_FOR_NORMS} <= names


def test_with_too_few_batches_the_noise_is_unresolved():
    assert "noise_unresolved" in codes((2.0, 0.0), (2.0, 0.0), params=10, batches=3, seed=1)


def test_the_guide_lists_every_code():
    root = Path(__file__).parents[2]
    source = (root / "gradhomog" / "diagnosis" / "recommendation.py").read_text(encoding="utf-8")
    codes = set(re.findall(r'Recommendation\(\s*"(\w+)"', source))
    guide = (root / "docs" / "guide" / "diagnose.md").read_text(encoding="utf-8")
    assert len(codes) > 10
    assert [code for code in codes if f"`{code}`" not in guide] == []
