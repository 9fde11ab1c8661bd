"""The table of timings, as text, as Markdown and as plain data; the interval of a median, compared with SciPy."""

import json
import math

import pytest
from scipy import stats

from gradhomog.experiments.profiling import harness
from gradhomog.experiments.profiling.harness import Quantiles
from tests.benchmarks.columns import Column, TableWithColumns


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (harness.ratio_text, 1.0449, "1.04"),
        (harness.ratio_text, 1 / 52813, "1/52,813"),
        (harness.ratio_text, 0.0, "0.00"),
        (harness.time_text, 0.1072, "107 ms"),
        (harness.time_text, 5e-9, "5 ns"),
    ],
)
def test_numbers_are_written_with_three_digits(function, value, text):
    assert function(value) == text


def test_the_table_has_times_ratios_columns_and_added_memory_in_all_formats():
    def row(label, seconds, ratio, *sizes):
        return harness.TimingRow(label, Quantiles.of([seconds] * 6), Quantiles.of([ratio] * 6), *sizes)

    made = TableWithColumns(
        "a step", "plain", (row("plain", 0.1, 1.0, 10**7), row("b", 0.103, 1.03, 12 * 10**6, 10**6)), ("a note",),
        {"c": "broke"}, (
            Column("over plain", {"b": Quantiles.of([0.003])}, lambda value: f"+{1e3 * value.median:.2f} ms"),
            Column("cosine", {"plain": 0.5}, lambda value: f"{value:.6f}"),
        ),
    )  # fmt: skip
    lines = made.render().splitlines()
    assert lines[4].split("  ")[0] == "plain"
    assert lines[4].split() == ["plain", "100", "ms", "–", "–", "–", "0.500000", "10.0", "MB", "6"]
    assert lines[5].split()[:7] == ["b", "103", "ms", "×", "1.03", "1.03", "–"]
    assert lines[5].split()[7:] == ["1.03", "+3.00", "ms", "–", "+3.00", "MB", "6"]
    assert lines[-2:] == ["a note", "Failed: c: broke"]
    assert made.table().markdown().splitlines() == [
        "| method | time | to plain | 95 % | over plain | cosine | memory | rounds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| plain | 100 ms | – | – | – | 0.500000 | 10.0 MB | 6 |",
        "| b | 103 ms | × 1.03 | 1.03 – 1.03 | +3.00 ms | – | +3.00 MB | 6 |",
    ]  # fmt: skip
    data = json.loads(json.dumps(made.record(), allow_nan=False))
    assert data["rows"][1]["added_bytes"] == 3 * 10**6
    assert data["rows"][1]["ratio"]["median"] == pytest.approx(1.03)
    assert data["rows"][1]["over plain"]["n"] == 1
    assert data["rows"][0]["over plain"] is None


@pytest.mark.parametrize("n", [6, 7, 15, 50, 101])
def test_the_interval_of_the_median_is_the_narrowest_with_95_percent_coverage(n):
    found = Quantiles.of([float(value) for value in range(1, n + 1)])
    rank = round(found.low)
    assert found.high == n + 1 - rank
    assert 2 * stats.binom.cdf(rank - 1, n, 0.5) <= 0.05 < 2 * stats.binom.cdf(rank, n, 0.5)
    assert found.median == (n + 1) / 2


def test_fewer_than_six_values_have_no_interval_and_an_empty_list_is_an_error():
    found = Quantiles.of([3.0, 1.0, 2.0])
    assert (found.median, found.n) == (2.0, 3)
    assert math.isnan(found.low)
    assert Quantiles.of([4.0]).median == 4.0
