"""The number of bytes that a rank sends is that of the cost model."""

import pytest

from tests.ranks import cases

pytestmark = pytest.mark.slow_after_first

SMALL = 2000  # bytes of headers, losses, Gramians and padding


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("over", "tasks"), [("batch", 1), ("batch", 4), ("tasks", 1), ("tasks", 3)])
def test_rows_and_the_direction_are_sent_once(processes, ranks, over, tasks):
    """Data-parallel training sends 2 P (K − 1) / K bytes, for any number of tasks."""
    for found in processes(cases.bytes_sent, ranks, over, tasks, 200):
        share = found["parameters"] * (ranks - 1) / ranks
        assert abs(found["total"] - (tasks + 1) * share) <= SMALL


@pytest.mark.parametrize("text", ["none", "static(weights=[1, 2, 3, 4])", "uw"])
def test_weights_that_read_no_row_cost_what_data_parallelism_costs(processes, text):
    for found in processes(cases.bytes_sent, 3, "batch", 4, 200, text):
        assert abs(found["total"] - 2 * found["parameters"] * 2 / 3) <= SMALL
