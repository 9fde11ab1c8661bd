"""The page about TorchJD's aggregators says what the conformance kit says: tried again for those that are quick."""

from __future__ import annotations

import re

import pytest

from gradhomog.testing import checks
from tests.docs import pages, torchjd_page
from tests.docs.torchjd_page import Found

PAGE = pages.text(torchjd_page.PAGE)


def marks(name: str) -> dict[str, str]:
    """By check, the mark that the page gives an aggregator."""
    found: dict[str, str] = {}
    header: list[str] = []
    for line in PAGE.splitlines():
        cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
        if line.startswith("| | "):
            header = cells[1:]
        elif line.startswith(f"| `{name}` |") and len(cells) == len(header) + 1:
            found |= dict(zip(header, cells[1:], strict=True))
    return found


def listed(heading: str) -> set[str]:
    """The checks named in the paragraph after a line."""
    paragraph = PAGE.split(f"\n{heading}\n", 1)[1].split("\n\n", 1)[0]
    return set(re.findall(r"`(\w+)`", paragraph))


def test_every_aggregator_and_every_check_stand_there() -> None:
    names = torchjd_page.aggregators()
    tables = [set(marks(name)) for name in names]
    assert all(tables)
    kept, nothing = listed(torchjd_page.KEPT), listed(torchjd_page.NOTHING)
    assert all(table | kept | nothing == {check.name for check in checks("homogenizers")} for table in tables)


@pytest.mark.parametrize("name", ["IMTLG", "Krum", "PCGrad"])
def test_the_marks_of_the_quick_ones_are_current(name: str) -> None:
    kept, nothing = listed(torchjd_page.KEPT), listed(torchjd_page.NOTHING)
    found = torchjd_page.found(name)
    assert {check: result.mark for check, result in found.items() if check in marks(name)} == marks(name)
    assert {found[check].mark for check in kept} <= {"✓", "n"}
    assert {found[check].mark for check in nothing} == {"–"}


def test_what_is_generated_leaves_the_rest_of_the_page_alone() -> None:
    results = {"Mean": {check.name: Found("✓") for check in checks("homogenizers")}}
    results["Sum"] = results["Mean"] | {"identical_rows": Found("✗", "off by | 1")}
    made = torchjd_page.page(f"before\n{torchjd_page.BEGIN}\nold\n{torchjd_page.END}\nafter\n", results)
    assert made.startswith("before\n")
    assert made.endswith("\nafter\n")
    assert "old" not in made
    assert "| `Sum` | `identical_rows` | off by \\| 1 |" in made
