"""The table of timings, as text and as plain data."""

from __future__ import annotations

import json

import pytest
from gradhomog.experiments.profiling.timing import Timings

from gradhomog.experiments.profiling import table, table_text


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (table_text.ratio_text, 1.0449, "1.04"),
        (table_text.ratio_text, 29.33, "29.3"),
        (table_text.ratio_text, 4321.0, "4,321"),
        (table_text.ratio_text, 1 / 52, "1/52"),
        (table_text.ratio_text, 1 / 52813, "1/52,813"),
        (table_text.time_text, 12.34, "12.3 s"),
        (table_text.time_text, 0.1072, "107 ms"),
        (table_text.time_text, 0.000234, "234 µs"),
        (table_text.time_text, 5e-9, "5 ns"),
    ],
)
def test_numbers_are_written_with_three_digits(function, value, text):
    assert function(value) == text


def test_the_table_has_times_ratios_and_added_memory_as_text_and_plain_data():
    timings = Timings(0, {"plain": dict.fromkeys(range(6), 0.1), "b": dict.fromkeys(range(6), 0.103)})
    rows = table.make_timing_rows(timings, "plain", peaks={"plain": 10**7, "b": 12 * 10**6}, states={"b": 10**6})
    made = table.Table("a step", "plain", rows, ("a note",), {"c": "broke"})
    text = table_text.render(made)
    first, second = text.splitlines()[4:6]
    assert first.split() == ["plain", "100", "ms", "–", "–", "10.0", "MB", "6"]
    assert second.split() == ["b", "103", "ms", "×", "1.03", "1.03", "–", "1.03", "+3.00", "MB", "6"]
    assert text.endswith("a note\nFailed: c: broke")
    data = json.loads(json.dumps(table.to_json(made), allow_nan=False))
    assert data["rows"][1]["added_bytes"] == 3 * 10**6
    assert data["rows"][1]["ratio"]["median"] == pytest.approx(1.03)
