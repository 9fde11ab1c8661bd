"""`--kernel combine`: works that do the same job on the same gradients, and what the table says of them."""

from __future__ import annotations

import importlib
import importlib.util
import itertools

import pytest
import torch

from gradhomog.errors import OptionError, UnknownPluginError
from gradhomog.experiments.profiling import combine
from gradhomog.experiments.profiling.combine import (
    AGAIN,
    FLOOR,
    NORMS,
    NORMS_READ,
    PLAIN,
    READ,
    Source,
    combine_costs,
    works,
)
from gradhomog.experiments.profiling.combine_peers import NAMES
from gradhomog.experiments.profiling.table import render, to_json

LEAST = [FLOOR, PLAIN, READ, AGAIN]
QUICK = {"rounds": 3, "seconds": 0.01}
WIDE = 20_000
"""More columns than a block of the Gramian's has, and no multiple of one."""

given = Source(3, WIDE)(0)


def test_all_works_whose_direction_is_the_mean_find_the_same_one():
    made, _, _ = works(["none", "gradnorm"], 3)
    expected = given.rows.double().mean(0)
    for label in (READ, "none", "torchjd Mean"):
        torch.testing.assert_close(made[label](given).double(), expected, rtol=1e-5, atol=1e-6, msg=label)
    for label in (FLOOR, AGAIN, PLAIN, NORMS_READ):
        torch.testing.assert_close(made[label](given)[1].double(), expected, rtol=1e-5, atol=1e-6, msg=label)


def test_the_statistics_of_the_floors_are_those_of_the_rows():
    made, _, _ = works(["gradnorm"], 3)
    gramian = torch.einsum("ip,jp->ij", given.rows.double(), given.rows.double())
    close = {"rtol": 1e-5, "atol": 1e-4 * float(gramian.diagonal().min())}
    for label in (FLOOR, AGAIN, PLAIN):
        torch.testing.assert_close(made[label](given)[0].double(), gramian, **close, msg=label)
    torch.testing.assert_close(made[NORMS](given), gramian.diagonal(), **close)
    torch.testing.assert_close(made[NORMS_READ](given)[0], gramian.diagonal(), **close)


def test_a_peer_is_the_same_method():
    made, peers, _ = works([], 2)
    drawn = {"graddrop"}  # signs by chance
    source = Source(2, 500)
    for number in range(3):
        step = source(number)
        for text, peer in peers.items():
            if text in {*NAMES} - drawn:
                ours, theirs = made[text](step).double(), made[peer](step).double()
                assert torch.cosine_similarity(ours, theirs, dim=0) > 0.99, (text, number)


def test_rounds_differ_and_calls_do_not_and_rows_are_written_where_the_last_ones_were():
    source, other = Source(4, 100), Source(4, 100)
    first = source(3)
    rows, losses = first.rows.clone(), first.losses
    again = other(3)
    assert torch.equal(again.rows, rows)
    assert torch.equal(again.losses, losses)
    second = source(4)
    assert not torch.equal(second.rows, rows)
    assert not torch.equal(second.losses, losses)
    assert second.rows.data_ptr() == first.rows.data_ptr()
    assert (losses > 0).all()


def test_gradients_agree_and_conflict_and_have_unlike_norms():
    source = Source(4, 2000)
    found = [source(number).rows.double() for number in range(10)]
    cosines = torch.stack([torch.corrcoef(rows)[0, 1:] for rows in found])
    assert cosines.min() < -0.4
    assert cosines.max() > 0.4
    norms = torch.stack([rows.norm(dim=1) for rows in found])
    assert norms.max() > 2 * norms.min()


# Keeps the Gramian's first number of every step.
SEEING = """
import gradhomog, torch
SEEN = []
class Seeing(gradhomog.Homogenizer):
    def mix(self, step):
        SEEN.append((float(step.gramian()[0, 0]), step.losses.tolist()))
        return torch.ones(step.tasks, dtype=torch.float64)
@gradhomog.hookimpl
def gradhomog_homogenizer():
    return gradhomog.HomogenizerSpec(factory=Seeing, summary="looks", needs={"gramian", "losses"})
"""


def test_what_remembers_its_last_step_never_sees_it_again(gradhomog_install):
    gradhomog_install("seeing-dist", SEEING, plugin="seeing")
    combine_costs(["seeing"], [(2, 30)], rounds=4, seconds=60)
    seen = importlib.import_module("seeing_dist").SEEN
    assert len(seen) == 1 + 4 + 1  # warm-up, rounds, memory
    assert all(one != next_one for one, next_one in itertools.pairwise(seen))


def test_each_stands_before_its_peer_after_the_floors():
    (table,) = combine_costs(["pcgrad", "none", 'pcgrad(scale="paper")', "static"], [(3, 500)], **QUICK)
    assert [row.label for row in table.rows] == [
        *LEAST, "pcgrad", "torchjd PCGrad", "none", "torchjd Mean", 'pcgrad(scale="paper")', "static",
    ]  # fmt: skip
    assert table.references == (FLOOR,)
    assert table.failures == {}
    to_peer = [row.label for row in table.rows if row.to_peer is not None]
    assert to_peer == ["pcgrad", "none", 'pcgrad(scale="paper")']
    assert [row.label for row in table.rows if row.beyond is None] == [FLOOR]
    assert table.title == "one step on J, the gradients of 3 tasks by 500 parameters, 1 thread"


def test_the_columns_are_those_of_ratio_difference_peer_and_memory():
    (table,) = combine_costs(["pcgrad"], [(2, 40_000)], rounds=8, seconds=60)
    text, data = render(table), to_json(table)
    header = text.splitlines()[2]
    for name in ("to floor", "over floor", "to peer", "memory"):
        assert name in header
    rows = {row["label"]: row for row in data["rows"]}
    ours, theirs = rows["pcgrad"], rows["torchjd PCGrad"]
    assert ours["beyond"]["n"] == ours["to_peer"]["n"] == ours["ratios"][FLOOR]["n"] == 8
    assert theirs["to_peer"] is None
    gradient = 4 * 40_000
    assert gradient <= rows[FLOOR]["peak_bytes"] < 1.1 * gradient
    assert abs(ours["added_bytes"]) < 0.1 * gradient  # one gradient, too


def test_gradnorm_is_compared_with_norms_and_others_have_none_in_their_table():
    (table,) = combine_costs(["gradnorm"], [(2, 500)], **QUICK)
    assert [row.label for row in table.rows] == [*LEAST, "gradnorm", NORMS, NORMS_READ]
    assert table.rows[4].to_peer is not None
    assert NORMS not in works(["pcgrad"], 2)[0]


def test_without_torchjd_ours_are_timed_alone_and_that_is_told_once(monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torchjd" else there(name))
    (table,) = combine_costs(["pcgrad", "none"], [(2, 50)], **QUICK)
    assert [row.label for row in table.rows] == [*LEAST, "pcgrad", "none"]
    assert all(row.to_peer is None for row in table.rows)
    assert "to peer" not in render(table).splitlines()[2]
    assert table.notes.count("TorchJD is left out: torchjd is not installed.") == 1


def test_a_peer_whose_solver_is_not_installed_is_left_out_with_the_reason(monkeypatch):
    def missing():
        raise ImportError("quadprog is not there")

    monkeypatch.setattr("torchjd.aggregation.PCGrad", missing)
    made, _, left_out = works(["pcgrad", "none"], 2)
    assert list(made) == [*LEAST, "pcgrad", "none", "torchjd Mean"]
    assert left_out == ["torchjd PCGrad is left out: quadprog is not there"]


def test_a_peer_that_raises_is_told_and_the_others_go_on(monkeypatch):
    class Failing:
        def __call__(self, rows):
            raise ArithmeticError("no convergence")

    monkeypatch.setattr("torchjd.aggregation.PCGrad", Failing)
    (table,) = combine_costs(["pcgrad"], [(2, 50)], **QUICK)
    assert table.failures == {"torchjd PCGrad": "TorchJD's PCGrad raised ArithmeticError: no convergence"}
    assert [row.label for row in table.rows] == [*LEAST, "pcgrad"]
    assert table.rows[4].to_peer is None


def test_of_the_default_list_those_that_do_not_load_are_left_out_and_told(monkeypatch):
    monkeypatch.setattr(combine, "EXPRESSIONS", ("none", "of_tomorrow", "pcgrad"))
    made, _, left_out = works([], 2)
    assert {"none", "pcgrad"} < set(made)
    assert left_out == ["Left out, as they do not load: of_tomorrow; `gradhomog show NAME` tells why."]
    with pytest.raises(UnknownPluginError):
        works(["of_tomorrow"], 2)


def test_the_default_shapes_are_those_of_the_specification():
    assert combine_costs.shapes == tuple((n, p) for p in (10**5, 10**6) for n in (2, 4, 8, 16))


@pytest.mark.parametrize("shape", [(4,), (4, 5, 6), (0, 5)])
def test_a_shape_of_another_form_is_refused(shape):
    with pytest.raises(OptionError, match="`--shape` must be tasks x params, each at least 1; got "):
        combine_costs(["none"], [shape], **QUICK)
