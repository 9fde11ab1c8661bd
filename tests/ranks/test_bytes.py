"""The number of bytes that a rank sends is that of the cost model."""

from __future__ import annotations

import pytest

from tests.ranks import cases

SMALL = 2000  # bytes of headers, losses, Gramians and padding


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("tasks", [1, 4])
def test_a_batch_over_ranks_sends_n_plus_one_halves_of_data_parallelism(processes, ranks, tasks):
    for found in processes(cases.bytes_sent, ranks, "batch", tasks, 200):
        share = found["parameters"] * (ranks - 1) / ranks
        assert abs(found["plain"] - 2 * share) <= SMALL
        assert abs(found["total"] - (tasks + 1) * share) <= SMALL


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("tasks", [1, 3])
def test_tasks_over_ranks_send_their_rows_once_and_the_direction_once(processes, ranks, tasks):
    for found in processes(cases.bytes_sent, ranks, "tasks", tasks, 200):
        share = found["parameters"] * (ranks - 1) / ranks
        assert abs(found["total"] - (tasks + 1) * share) <= SMALL


@pytest.mark.parametrize("text", ["none", "static(weights=[1, 2, 3, 4])", "uw"])
def test_weights_that_read_no_row_cost_what_data_parallelism_costs(processes, text):
    for found in processes(cases.bytes_sent, 3, "batch", 4, 200, text):
        assert abs(found["total"] - found["plain"]) <= SMALL
