"""`docs/guide/own-loop.md`: five lines homogenize a plain loop; both run and agree."""

from __future__ import annotations

import difflib
import math
import re

import pytest
import torch

from tests.docs import pages
from tests.docs.scripts import image_batches, printed

PAGE = pages.text("guide/own-loop.md")
FOLDER = pages.DOCS / "examples" / "own-loop"
NAMES = ["plain.py", "homogenized.py"]
PLAIN, HOMOGENIZED = ((FOLDER / name).read_text(encoding="utf-8").splitlines() for name in NAMES)


def test_five_lines_change_and_one_is_only_indented() -> None:
    bare = [[line.strip() for line in script] for script in (PLAIN, HOMOGENIZED)]
    changes = [change for change in difflib.SequenceMatcher(None, *bare).get_opcodes() if change[0] != "equal"]
    assert sum(max(until - start, to - at) for _, start, until, at, to in changes) == 5
    assert len(PLAIN) <= 60
    moved = set(bare[0]) & set(bare[1]) - {line.strip() for line in set(PLAIN) & set(HOMOGENIZED)}
    assert moved == {"for task in batch:"}


def test_the_page_shows_the_plain_loop_and_the_difference() -> None:
    assert pages.blocks(PAGE, "python")[0].splitlines() == PLAIN
    difference = difflib.unified_diff(PLAIN, HOMOGENIZED, *NAMES, lineterm="", n=1)
    assert pages.blocks(PAGE, "diff")[0].splitlines() == list(difference)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_script_learns_to_classify_characters_of_an_unseen_script(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.fullmatch(r"loss on an unseen script after 3 inner steps: (\d\.\d{3})\n", printed(FOLDER / name, capsys))
    assert found
    assert float(found[1]) < 0.9 * math.log(5)  # log 5: the loss of a uniform prediction over five characters


def trained(source: str) -> dict[str, torch.Tensor]:
    names: dict[str, object] = {"__name__": "script"}
    exec(source, names)
    torch.manual_seed(0)
    net = names["network"]().double()  # type: ignore[operator]
    names["train"](net, image_batches())  # type: ignore[operator]
    return net.state_dict()  # type: ignore[no-any-return]


@pytest.mark.slow
def test_with_no_homogenizer_the_homogenized_loop_is_the_plain_one_in_float64() -> None:
    plain, source = trained("\n".join(PLAIN)), "\n".join(HOMOGENIZED)
    same, other = trained(source.replace('"pcgrad"', '"none"')), trained(source)
    for name, value in plain.items():
        torch.testing.assert_close(same[name], value, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(plain["0.weight"], other["0.weight"], rtol=1e-6)
