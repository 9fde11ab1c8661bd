"""An error on one rank, or an option that no rank can have, raises on all ranks; no gradient is written."""

import re

import pytest

from tests.ranks import errors

pytestmark = pytest.mark.slow_after_first


@pytest.mark.parametrize("name", errors.CASES)
def test_a_step_that_cannot_be_taken_raises_on_all_ranks_and_writes_no_shared_gradient(processes, name):
    for text, expected in zip(processes(errors.error, 2, name), errors.CASES[name][2:], strict=True):
        assert re.search(expected, text, re.DOTALL), text
