"""The faults of TorchOpt on `docs/guide/torchopt.md` are those that its release shows."""

from __future__ import annotations

import re

import pytest
import torchopt

from tests.docs import pages
from tests.docs.torchopt_faults import SEEN

SECTION = pages.text("guide/torchopt.md").split("## Faults of TorchOpt 0.7.3")[1]
ROWS = dict(re.findall(r"^\| ([^|]+) \|[^|]*\|[^|]*\| ([^|]+) \|$", SECTION, re.MULTILINE))


def test_every_fault_on_the_page_has_an_input() -> None:
    assert {name for name in ROWS if name != "fault"} == set(SEEN)
    assert torchopt.__version__ == "0.7.3"


@pytest.mark.filterwarnings("ignore")  # of deprecated functions of PyTorch that TorchOpt calls
@pytest.mark.parametrize("name", SEEN)
def test_torchopt_returns_what_the_page_shows(name: str) -> None:
    assert SEEN[name]() == ROWS[name]
