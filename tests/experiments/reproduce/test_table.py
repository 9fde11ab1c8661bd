"""Averages of the table: over the columns of one number of shots, and only of rows in all columns."""

from __future__ import annotations

import math

from gradhomog.experiments.analysis.statistics import mean_interval
from gradhomog.experiments.reproduce.protocol import NATURAL
from gradhomog.experiments.reproduce.table import Cell, _averages


def cell(column: str, row: str, *scores: float) -> Cell:
    return Cell(column, row, mean_interval(scores), dict(enumerate(scores)), math.nan, None, None, None)


def test_averages_are_over_columns_with_exactly_this_number_of_shots() -> None:
    cells = [cell(f"{name} 5-shot", "MAML", 0.5, 0.6) for name in NATURAL]
    cells += [cell(f"{name} 15-shot", "MAML", 0.9, 0.9) for name in NATURAL]
    found = {average.column: average for average in _averages("strong", "strong", cells, [])}
    assert found["average natural 5-shot"].ours.mean == 0.55
    assert found["average natural 5-shot"].published is not None
    assert found["average natural 15-shot"].ours.mean == 0.9
    assert found["average natural 15-shot"].published is None
    assert found["average of 4, 5-shot"].seed_scores == {0: 0.5, 1: 0.6}


def test_rows_that_lack_a_column_or_a_seed_are_averaged_over_common_ones_or_omitted() -> None:
    cells = [cell(f"{name} 1-shot", "MAML", 0.5, 0.6) for name in NATURAL[:3]]
    cells += [cell(f"{NATURAL[3]} 1-shot", "MAML", 0.7), cell("cub 1-shot", "ANIL", 0.4)]
    found = [(average.column, average.row, average.seed_scores) for average in _averages("strong", "", cells, [])]
    assert found[0] == ("average natural 1-shot", "MAML", {0: (3 * 0.5 + 0.7) / 4})
    assert not any(row == "ANIL" for _, row, _ in found)
