"""The HTML report in headless Chromium: no console message, sorting by click, 400 px without overflow."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from tests.experiments.report.test_page import report
from tests.experiments.synthetic_records import METHODS, comparison

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.chromium,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on the path"),
]

NARROW = 400

# Run in the page after its own script: its width, and the columns of its tables after each click on their headers.
PROBE = """
const text = (row, column) => row.cells[column].textContent;
const clicks = [];
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("th").forEach((header, column) => {
    const read = () => [...table.tBodies[0].rows].map((row) => [row.cells[column].dataset.sort, text(row, 0)]);
    const before = read();
    header.querySelector("button").click();
    const up = [read(), header.getAttribute("aria-sort")];
    header.querySelector("button").click();
    const down = [read(), header.getAttribute("aria-sort")];
    clicks.push({title: header.textContent, before, up, down});
  });
}
const found = {
  width: document.documentElement.clientWidth,
  scrollWidth: document.documentElement.scrollWidth,
  font: Math.min(...[...document.querySelectorAll("td, dd, figcaption, li, p")].map(
    (element) => parseFloat(getComputedStyle(element).fontSize))),
  figures: [...document.querySelectorAll("figure svg")].map(
    (figure) => figure.getBoundingClientRect().width / figure.viewBox.baseVal.width),
  clicks,
};
window.parent.postMessage(JSON.stringify(found), "*");
"""


def chromium(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    quiet = (
        "--headless", "--hide-scrollbars", "--disable-gpu", "--no-sandbox", "--no-first-run",
        f"--user-data-dir={folder / 'profile'}",
    )  # fmt: skip
    command = [BROWSER, *quiet, "--enable-logging=stderr", "--virtual-time-budget=5000", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)


def console(browser: subprocess.CompletedProcess[str]) -> list[str]:
    """The console messages of pages, including errors."""
    return [line for line in browser.stderr.splitlines() if ":CONSOLE" in line]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    report(folder, comparison([*METHODS, "a method with a very long name (" + "x" * 60 + ")"], seeds=3, steps=3))
    return folder / "report.html"


def run_probe(page: Path, width: int) -> dict:
    """The results of the probe in a frame of this width; a frame, because a window cannot be narrower than 500 px."""
    inner, outer = page.with_name("probed.html"), page.with_name("frame.html")
    text = page.read_text(encoding="utf-8")
    inner.write_text(text.replace("</body>", f"<script>{{{PROBE}}}</script></body>"), encoding="utf-8")
    outer.write_text(
        "<!DOCTYPE html><pre></pre><script>"
        "onmessage = (event) => { document.querySelector('pre').textContent = event.data; };</script>"
        f'<iframe src="probed.html" style="border: 0; width: {width}px; height: 900px"></iframe>'
    )
    browser = chromium(page.parent, "--window-size=1400,1000", "--dump-dom", outer.as_uri())
    assert console(browser) == []
    [found] = re.findall(r"<pre>(.*?)</pre>", browser.stdout, flags=re.DOTALL)
    return json.loads(unescape(found))


@pytest.fixture(scope="module")
def narrow(page: Path) -> dict:
    return run_probe(page, NARROW)


def test_at_400_px_nothing_overflows_and_text_is_legible(narrow):
    assert narrow["width"] == NARROW
    assert narrow["scrollWidth"] <= NARROW
    assert narrow["font"] >= 12
    # Figures keep their size, 1 pt = 4/3 px, and scroll in their boxes.
    assert narrow["figures"]
    assert all(scale == pytest.approx(4 / 3, rel=0.01) for scale in narrow["figures"])


def test_a_click_sorts_the_rows_by_a_column_and_a_second_one_reverses_them(narrow):
    titles = {click["title"] for click in narrow["clicks"]}
    assert {"method", "accuracy %", "difference to plain", "p (Holm)", "seeds for 1 point", "candidate"} <= titles
    for click in narrow["clicks"]:
        for (rows, direction), name in ((click["up"], "ascending"), (click["down"], "descending")):
            assert direction == name
            assert sorted(rows) == sorted(click["before"])
            known = [entry for entry in rows if entry[0]]
            assert rows[: len(known)] == known  # missing values are last
            if all(re.fullmatch(r"[-+.e\d]+", entry[0]) for entry in known):
                numbers = [float(entry[0]) for entry in known]
                assert numbers == sorted(numbers, reverse=name == "descending")
