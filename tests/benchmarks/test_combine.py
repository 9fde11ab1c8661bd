"""The benchmark of `combine`: workloads compute the same result from the same gradients, and rows of the table."""

from __future__ import annotations

import importlib
import itertools

import torch

from tests.benchmarks.combine import BENCHMARK, FLOOR, NORMS, NORMS_READ, PLAIN, READ, SECOND_FLOOR, workloads
from tests.benchmarks.combine_inputs import Source
from tests.benchmarks.combine_peers import NAMES

LEAST = [FLOOR, PLAIN, READ, SECOND_FLOOR]
QUICK = {"rounds": 3, "seconds": 0.01}
WIDE = 20_000
"""More columns than a block of the Gramian has, and not a multiple of the block size."""

given = Source(3, WIDE)(0)


def test_all_workloads_whose_direction_is_the_mean_return_the_same_direction():
    made, _ = workloads(["none", "gradnorm"], 3)
    expected = given.rows.double().mean(0)
    for label in (READ, "none", "torchjd Mean"):
        torch.testing.assert_close(made[label](given).double(), expected, rtol=1e-5, atol=1e-6, msg=label)
    for label in (FLOOR, SECOND_FLOOR, PLAIN, NORMS_READ):
        torch.testing.assert_close(made[label](given)[1].double(), expected, rtol=1e-5, atol=1e-6, msg=label)


def test_the_statistics_of_the_floors_are_those_of_the_rows():
    made, _ = workloads(["gradnorm"], 3)
    gramian = torch.einsum("ip,jp->ij", given.rows.double(), given.rows.double())
    close = {"rtol": 1e-5, "atol": 1e-4 * float(gramian.diagonal().min())}
    for label in (FLOOR, SECOND_FLOOR, PLAIN):
        torch.testing.assert_close(made[label](given)[0].double(), gramian, **close, msg=label)
    torch.testing.assert_close(made[NORMS](given), gramian.diagonal(), **close)
    torch.testing.assert_close(made[NORMS_READ](given)[0], gramian.diagonal(), **close)


def test_a_peer_is_the_same_method():
    made, peers = workloads([], 2)
    stochastic = {"graddrop"}  # draws random signs
    source = Source(2, 500)
    for number in range(3):
        step = source(number)
        for text, peer in peers.items():
            if text in {*NAMES} - stochastic:
                ours, theirs = made[text](step).double(), made[peer](step).double()
                assert torch.cosine_similarity(ours, theirs, dim=0) > 0.99, (text, number)


# Records the Gramian's first number and the losses of every step.
RECORDING = """
import gradhomog, torch
SEEN = []
class Recording(gradhomog.Homogenizer):
    def mix(self, step):
        SEEN.append((float(step.gramian()[0, 0]), step.losses.tolist()))
        return torch.ones(step.tasks, dtype=torch.float64)
@gradhomog.hookimpl
def gradhomog_homogenizer():
    return gradhomog.HomogenizerSpec(factory=Recording, summary="records", needs={"gramian", "losses"})
"""


def test_a_homogenizer_receives_different_gradients_in_every_step(gradhomog_install):
    gradhomog_install("gramians-dist", RECORDING, plugin="gramians")
    BENCHMARK(["gramians"], [(2, 30)], rounds=4, seconds=60)
    seen = importlib.import_module("gramians_dist").SEEN
    assert len(seen) == 1 + 4 + 1  # warm-up, rounds, memory
    assert all(one != next_one for one, next_one in itertools.pairwise(seen))


def test_rows_are_the_floors_then_each_homogenizer_followed_by_its_peer():
    (found,) = BENCHMARK(["pcgrad", "none", 'pcgrad(scale="paper")', "static"], [(3, 500)], **QUICK)
    labels = [row.label for row in found.table.rows]
    assert labels == [
        *LEAST, "pcgrad", "torchjd PCGrad", "none", "torchjd Mean", 'pcgrad(scale="paper")', "static",
    ]  # fmt: skip
    assert found.table.failures == {}
    over_floor, to_peer = found.columns
    assert set(over_floor.values) == {*labels} - {FLOOR}
    assert list(to_peer.values) == ["pcgrad", "none", 'pcgrad(scale="paper")']
    assert found.table.title == "one step on J, the gradients of 3 tasks by 500 parameters, 1 thread"


def test_the_columns_are_those_of_ratio_difference_peer_and_memory():
    (found,) = BENCHMARK(["pcgrad"], [(2, 40_000)], rounds=8, seconds=60)
    assert found.lines()[0][2:7] == ["to floor", "95 %", "over floor", "to peer", "memory"]
    rows = {row["label"]: row for row in found.record()["rows"]}
    ours, theirs = rows["pcgrad"], rows["torchjd PCGrad"]
    assert ours["over floor"]["n"] == ours["to peer"]["n"] == ours["ratio"]["n"] == 8
    assert theirs["to peer"] is None
    gradient = 4 * 40_000
    assert gradient <= rows[FLOOR]["peak_bytes"] < 1.1 * gradient
    assert abs(ours["added_bytes"]) < 0.1 * gradient  # one gradient, too


def test_only_tables_with_gradnorm_have_rows_of_norms():
    (found,) = BENCHMARK(["gradnorm"], [(2, 500)], **QUICK)
    assert [row.label for row in found.table.rows] == [*LEAST, "gradnorm", NORMS, NORMS_READ]
    assert list(found.columns[1].values) == ["gradnorm"]
    assert NORMS not in workloads(["pcgrad"], 2)[0]


def test_a_peer_that_raises_is_reported_and_the_others_continue(monkeypatch):
    class Failing:
        def __call__(self, rows):
            raise ArithmeticError("no convergence")

    monkeypatch.setattr("torchjd.aggregation.PCGrad", Failing)
    (found,) = BENCHMARK(["pcgrad"], [(2, 50)], **QUICK)
    assert found.table.failures == {"torchjd PCGrad": "TorchJD's PCGrad raised ArithmeticError: no convergence"}
    assert [row.label for row in found.table.rows] == [*LEAST, "pcgrad"]
    assert [column.title for column in found.columns] == ["over floor"]


def test_the_default_shapes_are_2_to_16_tasks_by_two_sizes():
    assert BENCHMARK.shapes == tuple((n, p) for p in (10**5, 10**6) for n in (2, 4, 8, 16))
