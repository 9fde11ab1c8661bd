"""The memory that methods' pages state: a step takes its rows, copies of them where a method keeps some, and little."""

import pytest
from _site import step_memory

pytestmark = pytest.mark.slow_after_first

READ = ["and_mask", "graddrop", "lra", "pcgrad", "reweight", "sago", "sand_mask", "trimmed_mean"]
WITH_AVERAGES_OR_SCALED = ["db_mtl", "excess_mtl", "metabalance", "moco"]
COPIES = {"none": 0, "tracked": 0} | dict.fromkeys(READ, 1) | dict.fromkeys(WITH_AVERAGES_OR_SCALED, 2)


@pytest.mark.parametrize("name", COPIES)
def test_a_step_allocates_at_most_four_gradients_beside_copies_of_the_rows(name):
    assert step_memory.measure(name)[0] <= step_memory.TASKS * COPIES[name] + 4
