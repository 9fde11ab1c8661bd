"""No control character of a file, a name or an error reaches the terminal or an SVG file."""

import contextlib
import json
import re
import sys
import xml.etree.ElementTree as ET

import pytest
from markupsafe import Markup
from matplotlib.figure import Figure
from tqdm import tqdm

from gradhomog.cli import _output, main
from gradhomog.experiments.report.figures import style
from gradhomog.experiments.report.page import environment
from gradhomog.table import Cell, Table
from gradhomog.terminal import escaped_output

TITLE = "\x1b]0;title\x07\x9b31m\u202e\x7f\r"
"""Sets the title of the window, the colour and the direction of writing, and returns to the start of the line."""

CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def csv_column(folder, install):
    (folder / "a.csv").write_text(f'a,"{TITLE}"\n1,2\n', encoding="utf-8")
    problem = ["problem.name=regression", f"problem.data={folder / 'a.csv'}", 'problem.targets=["b"]']
    return ["compare", *[word for entry in problem for word in ("--set", entry)]]


def toml_key(folder, install):
    (folder / "a.toml").write_text(f"{json.dumps(TITLE)} = 1", encoding="utf-8")
    return ["compare", str(folder / "a.toml")]


def plugin_import(folder, install):
    install("bad-dist", f"raise RuntimeError({TITLE!r})", plugin="bad")
    return ["show", "bad"]


INPUTS = {
    "csv column": csv_column,
    "toml key": toml_key,
    "pipeline": lambda folder, install: ["compare", "--set", f"homogenizers={json.dumps([TITLE])}"],
    "plugin": plugin_import,
    "file name": lambda folder, install: ["report", str(folder / TITLE)],
    "argument": lambda folder, install: ["report" + TITLE],
}


@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS)
def test_control_characters_of_input_are_printed_as_escapes(tmp_path, monkeypatch, capsys, gradhomog_install, make):
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(SystemExit):  # of argparse
        assert main(make(tmp_path, gradhomog_install)) == 2
    printed = "".join(capsys.readouterr())
    assert CONTROLS.findall(printed) == []
    assert re.search(r"(\\u001b|\\x1b)\]0;title", printed)


def test_progress_bars_keep_their_movements_and_their_text_is_escaped(capsys):
    with escaped_output():
        with tqdm(total=2, desc=f"listing {TITLE}", file=sys.stderr, position=0) as bar:
            bar.update(2)
        assert sys.stderr.write("\x1b[A\x1b[A") == 6
    printed = capsys.readouterr().err
    assert printed.startswith("\rlisting \\u001b]0;title\\u0007\\u009b31m\\u202e\\u007f\\u000d")
    assert set(CONTROLS.findall(printed.removesuffix("\x1b[A\x1b[A"))) == {"\r"}


def test_json_keeps_its_meaning(capsys):
    with escaped_output():
        _output.print_json({"name": TITLE})
    printed = capsys.readouterr().out
    assert CONTROLS.findall(printed) == []
    assert json.loads(printed) == {"name": TITLE}


def test_a_line_end_in_a_cell_does_not_end_the_line_of_its_table():
    assert "\n" not in "".join(Table(["a", "b"], [["1\nall is well", "2"]]).lines())


@pytest.mark.filterwarnings("ignore:Glyph")
def test_figures_with_control_characters_in_any_text_are_well_formed(tmp_path):
    figure = Figure()
    axes = figure.subplots()
    axes.plot([1, 2], label=f"<a>&--> {TITLE}")
    axes.set_title(f"{TITLE}\uffff--")
    axes.set_yticks([1, 2], [TITLE, "\0"])
    axes.legend()
    svg, _ = style.save(figure, tmp_path / "figure")
    assert ET.fromstring(svg.read_bytes()).tag.endswith("svg")
    assert "\\u001b]0;title" in svg.read_text(encoding="utf-8")


def test_every_output_of_a_table_is_without_control_characters():
    table = Table([TITLE], [[TITLE], [Cell(TITLE, TITLE)], [Cell("1", TITLE)]], notes=[TITLE])
    for output in (table.text(), table.html(TITLE), table.markdown(), Table([], [], [TITLE], empty=TITLE).text()):
        assert CONTROLS.findall(output) == []
        assert "]0;title" in output


def test_pages_have_no_control_characters():
    template = environment().from_string("{{ text }} {{ markup }} {{ number }}")
    page = template.render(text=f"<{TITLE}", markup=Markup(f"<b>{TITLE}</b>"), number=1.5)
    assert CONTROLS.findall(page) == []
    assert page.startswith("&lt;\\u001b]0;title")
    assert page.endswith("</b> 1.5")
