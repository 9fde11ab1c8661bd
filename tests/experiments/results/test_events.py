"""Event logs: events round-trip, an unfinished line is skipped, and errors name the invalid line."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradhomog import ConfigError, GradhomogError
from gradhomog.experiments.results import events
from gradhomog.experiments.results.events import EventLog

VALIDATION = {"event": "validation", "step": 5, "score": 0.5, "half_width": 0.1}


def test_events_are_read_in_order_without_an_unfinished_line(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    for step in range(4):
        log.append({**VALIDATION, "step": step})
    with log.path.open("ab") as file:
        file.write(b'{"event": "valida')
    assert [event["step"] for event in events.read(log.path)] == [0, 1, 2, 3]
    assert events.read(tmp_path / "nothing.jsonl") == []


def test_resuming_truncates_the_log_at_the_checkpoint(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.append({**VALIDATION, "step": 1})
    size = log.sync()
    log.append({**VALIDATION, "step": 2})
    with log.path.open("ab") as file:
        file.write(b'{"event": "valida')
    EventLog(log.path, size).append({**VALIDATION, "step": 3})
    assert [event["step"] for event in events.read(log.path)] == [1, 3]


def test_non_finite_numbers_are_null_in_the_file_and_nan_when_read(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.append({**VALIDATION, "score": np.float32("nan"), "half_width": math.inf})
    assert json.loads(log.path.read_text())["score"] is None
    [event] = events.read(log.path)
    assert all(map(math.isnan, events.numbers([event["score"], event["half_width"]])))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"half a line", "line 2: expected an event as a JSON object"),
        (b'{"event": "party"}', "expected an `event` among"),
        (b'{"event": "validation", "step": 1, "score": 0.5}', "`half_width` is missing"),
        (b'{"event": "validation", "step": "1", "score": 0.5, "half_width": null}', "`step` must be an integer ≥ 0"),
        (b'{"event": "failed", "step": 1, "error": "x", "version": 99}', "format version 99; this gradhomog reads 2"),
        (b"[" * 100_000, "expected an event as a JSON object"),
    ],
)
def test_the_error_of_an_invalid_line_names_file_and_line(tmp_path, line, words):
    path = tmp_path / "events.jsonl"
    path.write_bytes(json.dumps(VALIDATION).encode() + b"\n" + line + b"\n")
    with pytest.raises(ConfigError) as error:
        events.read(path)
    assert str(path) in str(error.value)
    assert words in str(error.value)


@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_events_or_an_error_that_names_the_file(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    path.write_bytes(content)
    try:
        message = str(path) if isinstance(events.read(path), list) else "not a list"
    except GradhomogError as error:
        message = str(error)
    assert str(path) in message
