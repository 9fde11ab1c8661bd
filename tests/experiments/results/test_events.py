"""The run log survives kills at any byte, and says what is wrong with what it cannot read."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradhomog.errors import ConfigError
from gradhomog.experiments.results.events import ResultLog, numbers, plain

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
# `failed` records are never merged, so that what is read is what was written.
events = st.builds(lambda content: {**content, "event": "failed"}, st.dictionaries(texts, values, max_size=3))


def write(path: Path, records: list[dict[str, Any]]) -> None:
    log = ResultLog(path)
    for record in records:
        log.append(record)


@given(st.lists(events, min_size=1, max_size=4), st.data())
def test_recovering_a_log_cut_at_any_byte_leaves_exactly_the_complete_records_before_it(records, data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.jsonl"
        ends = []
        write(path, [])
        for record in records:
            write(path, [record])
            ends.append(path.stat().st_size)
        cut = data.draw(st.integers(0, ends[-1]))
        path.write_bytes(path.read_bytes()[:cut])
        complete = sum(end <= cut for end in ends)
        expected = [plain(record) for record in records[:complete]]
        assert ResultLog.read(path) == expected  # a report may be made while a run is writing
        assert ResultLog.recover(path) == cut - ([0, *ends][complete] if cut else 0)
        assert ResultLog.read(path) == expected
        assert ResultLog.recover(path) == 0
        write(path, [{"event": "after"}])
        assert ResultLog.read(path) == [*expected, {"event": "after"}]


def test_a_last_line_that_does_not_parse_is_cut_off(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_bytes(b'{"event": "start"}\n\x00\x00\x00\n')
    assert ResultLog.recover(path) == 4
    assert path.read_bytes() == b'{"event": "start"}\n'


@pytest.mark.parametrize("line", ["{broken", "[1]", '{"run": "a"}', ""])
def test_a_damaged_line_in_the_middle_is_an_error_with_file_and_line_and_nothing_is_cut(tmp_path, line):
    path = tmp_path / "results.jsonl"
    path.write_text(f'{{"event": "start"}}\n{line}\n{{"event": "start"}}\n')
    before = path.read_bytes()
    for reader in (ResultLog.read, ResultLog.recover):
        with pytest.raises(ConfigError, match=r"results\.jsonl, line 2: expected a JSON object .* delete this line"):
            reader(path)
    assert path.read_bytes() == before


def test_appending_to_half_a_line_is_refused(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"event": "st')
    with pytest.raises(ConfigError, match=r"half a line.*recover"):
        ResultLog(path)


def test_a_missing_log_is_an_error_that_says_what_to_pass(tmp_path):
    with pytest.raises(ConfigError, match="gradhomog compare"):
        ResultLog.read(tmp_path / "results.jsonl")


def test_an_empty_log_has_no_records(tmp_path):
    path = tmp_path / "results.jsonl"
    path.touch()
    assert ResultLog.recover(path) == 0
    assert ResultLog.read(path) == []


def test_numbers_that_are_not_finite_are_written_as_null_and_read_as_nan(tmp_path):
    path = tmp_path / "results.jsonl"
    write(path, [{"event": "step", "losses": [1.5, math.nan, math.inf, -math.inf], "norm": np.float64("nan")}])
    line = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert line["losses"] == [1.5, None, None, None]
    assert line["norm"] is None
    assert numbers(line["losses"])[0] == 1.5
    assert all(map(math.isnan, numbers(line["losses"])[1:]))


def test_numpy_values_and_tuples_become_plain_json():
    record = {"a": np.arange(3), "b": (np.float32(0.5), np.int64(2)), 3: True}
    assert plain(record) == {"a": [0, 1, 2], "b": [0.5, 2], "3": True}


def test_of_steps_that_a_resumed_run_repeats_the_last_one_counts(tmp_path):
    path = tmp_path / "results.jsonl"
    first = [{"event": "step", "run": "a", "step": step, "value": "old"} for step in (1, 2, 3)]
    other = [{"event": "validation", "run": "a", "step": 2}, {"event": "step", "run": "b", "step": 2}]
    again = [{"event": "step", "run": "a", "step": step, "value": "new"} for step in (2, 3)]
    write(path, [*first, *other, *again])
    assert ResultLog.read(path) == [first[0], *other, *again]


def test_a_candidate_and_the_row_it_became_are_both_kept(tmp_path):
    path = tmp_path / "results.jsonl"
    records = [{"event": "result", "run": "a", "role": role} for role in ("candidate", "compare")]
    write(path, records)
    assert ResultLog.read(path) == records


def test_a_record_without_an_event_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"text `event`; found the keys \['run'\]"):
        ResultLog(tmp_path / "results.jsonl").append({"run": "a"})
