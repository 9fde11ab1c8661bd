"""The table of TorchOpt's faults has an input for each, which users can run; what TorchOpt returns is not asserted."""

from __future__ import annotations

import re
import runpy

from tests.docs import pages

FAULTS = pages.DOCS / "examples" / "torchopt" / "faults.py"


def test_every_fault_on_the_page_has_an_input() -> None:
    section = pages.text("guide/torchopt.md").split("## Faults of TorchOpt 0.7.3")[1]
    rows = re.findall(r"^\| ([^|]+) \|[^|]*\|[^|]*\|[^|]+\|$", section, re.MULTILINE)
    assert {name for name in rows if name != "fault"} == set(runpy.run_path(str(FAULTS), run_name="script")["FAULTS"])
