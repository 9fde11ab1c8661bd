"""Comparison of workloads with fixed times: ratios to references and peers, differences, cosines."""

from __future__ import annotations

import pytest

from gradhomog.errors import PluginRunError
from gradhomog.experiments.profiling.timing import Timings
from tests.benchmarks.case import Case


def case(*references, **more):
    return Case({}, lambda number: number, references, "title", ("a note",), **more)


def timings(warm_up, failures=(), **taken):
    return Timings(warm_up, {label: dict(enumerate(seconds)) for label, seconds in taken.items()}, dict(failures))


def test_further_references_differences_and_peers_are_columns():
    found = timings(0, {"failed": "broke"}, a=[1.0, 2.0, 4.0], b=[1.5, 2.5, 4.5], c=[3.0, 5.0, 9.0], failed=[1.0])
    peers = {"b": "c", "a": "failed", "c": "absent", "failed": "a"}
    made = case("a", "c", paired=True, difference=True, peers=peers)
    assert [row.label for row in made.rows(found, {})] == ["a", "b", "c"]
    to_c, over_a, to_peer = made.columns(found, {})
    assert (to_c.title, over_a.title, to_peer.title) == ("to c", "over a", "to peer")
    assert {label: value.median for label, value in to_c.values.items()} == {"a": 0.4, "b": 0.5}
    assert {label: value.median for label, value in over_a.values.items()} == {"b": 0.5, "c": 3.0}
    assert {label: value.median for label, value in to_peer.values.items()} == {"b": 0.5}


def test_cosines_are_a_column_if_a_workload_has_one():
    found = timings(0, a=[1.0], b=[2.0])
    (column,) = case("a", paired=True).columns(found, {"a": None, "b": 0.5})
    assert (column.title, column.values) == ("cosine", {"b": 0.5})
    assert case("a", paired=True).columns(found, {"a": None}) == ()


@pytest.mark.parametrize(("paired", "ratio"), [(True, 2.0), (False, 4.0)])
def test_paired_ratios_are_within_rounds_even_if_numbers_of_rounds_differ(paired, ratio):
    # "b" is so slow that its share of the time ends after the first rounds, in which "a" is slow, too.
    found = timings(1, a=[3.0, 2.0, 1.0, 1.0, 1.0], b=[6.0, 4.0])
    assert case("a", paired=paired).rows(found, {})[1].ratio.median == ratio


def test_additional_columns_are_between_the_ratio_to_the_reference_and_memory():
    def fail(given):
        raise PluginRunError("out of ideas")

    workloads = {"a": lambda given: None, "b": lambda given: None, "failing": fail}
    made = Case(workloads, lambda number: number, ("a",), "title", ("a note",), paired=True, difference=True)
    ticks = iter(range(1000))
    found = made.compare(8, 1e9, 2, lambda: float(next(ticks)), lambda done, most: None)
    lines = found.markdown().splitlines()
    header, _, a, b, *rest = [[cell.strip() for cell in line.split("|")] for line in lines[2:]]
    assert header == ["", "method", "time", "to a", "95 %", "over a", "memory", "rounds", ""]
    assert a == ["", "a", "1.00 s", "–", "–", "–", "0.00 MB", "8", ""]
    assert b == ["", "b", "1.00 s", "× 1.00", "1.00 – 1.00", "+0.00 ms", "+0.00 MB", "8", ""]
    assert rest == [[""], ["- a note"], ["- Failed: failing: out of ideas"]]
    assert lines[0] == "## title, 2 threads"
    data = found.record()
    assert data["rows"][1]["over a"]["median"] == 0
    assert data["rows"][0]["over a"] is None
