"""Gradients of a summed loss are detected; gradients of separate losses are not."""

from __future__ import annotations

import pytest
import torch

from gradhomog.diagnosis.labelled_gramian import LabelledGramian
from gradhomog.diagnosis.summed_loss import rows_are_parallel, summed_labels
from tests.diagnosis.synthetic import draw, means

MEAN = means((1.0, 0.0, 0.0), (0.9, 0.3, 0.0), (0.8, 0.0, 0.5), params=20)


def separate() -> torch.Tensor:
    return draw(MEAN, 6, seed=0, noise=0.1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_multiples_of_one_gradient_are_parallel_in_every_precision(dtype):
    total = separate().sum(1, keepdim=True)
    rows = (total * torch.tensor([1.0, 2.0, -3.0])[:, None]).to(dtype)  # as `.grad` that accumulates, and a sign
    assert rows_are_parallel(LabelledGramian.of_rows(rows))


def test_nearly_equal_losses_are_not_parallel():
    rows = separate()
    rows[:, 1] = rows[:, 0] + 0.01 * rows[:, 2]
    rows[:, 2] = rows[:, 0]
    assert not rows_are_parallel(LabelledGramian.of_rows(rows))


def test_one_batch_with_separate_gradients_is_enough():
    rows = separate()
    rows[1:] = rows[1:].sum(1, keepdim=True)
    assert not rows_are_parallel(LabelledGramian.of_rows(rows))


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_the_total_loss_among_the_tasks_is_found(factor):
    rows = separate().float()
    with_total = torch.cat([rows, factor * rows.sum(1, keepdim=True)], dim=1)
    assert summed_labels(LabelledGramian.of_rows(with_total, ["a", "b", "c", "total"])) == ["total"]
    assert summed_labels(LabelledGramian.of_rows(rows)) == []
