"""The paper's numbers: the averages that it prints are those of our transcription, and rows have their improvements."""

from __future__ import annotations

import pytest

from gradhomog.experiments.reproduce.protocol import NATURAL, SPECIALIZED, WEAK
from gradhomog.experiments.reproduce.published import _tables, published_score


@pytest.mark.parametrize("row", sorted(_tables()["strong"]))
@pytest.mark.parametrize(("name", "block"), [("average natural", NATURAL), ("average specialized", SPECIALIZED)])
@pytest.mark.parametrize("shots", ["1-shot", "5-shot"])
def test_printed_averages_are_the_means_of_the_columns(row: str, name: str, block: tuple[str, ...], shots: str) -> None:
    columns = [published_score("strong", row, f"{benchmark} {shots}") for benchmark in block]
    printed = published_score("strong", row, f"{name} {shots}")
    assert printed is not None
    mean = sum(score.mean for score in columns if score is not None) / len(columns)
    assert printed.mean == pytest.approx(mean, abs=0.0101)


def test_the_ablation_and_the_tables_have_the_same_numbers_of_imaml() -> None:
    columns = [("weak", f"{name} {shots}") for name in WEAK for shots in ("1-shot", "5-shot")]
    columns += [("strong", f"{name} {shots}") for name in ("cars", "eurosat") for shots in ("1-shot", "5-shot")]
    for table, column in columns:
        for row, in_ablation in (("iMAML", "plain"), ("iMAML-RotoGBML", "isi + rotate + reweight")):
            printed, ablation = published_score(table, row, column), published_score("ablation", in_ablation, column)
            assert printed is not None
            assert ablation is not None
            assert printed.mean == ablation.mean


def test_unknown_numbers_are_none() -> None:
    assert published_score("weak", "MAML", "cars 1-shot") is None
    assert published_score("weak", "FOMAML", "cub 1-shot") is None
    assert published_score("beta", "MAML", "cub 1-shot") is None
