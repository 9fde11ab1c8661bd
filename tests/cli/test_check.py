"""`gradhomog check`: table, JSON data, exit codes, and messages instead of tracebacks."""

import json
import os
import subprocess
import sys

import pytest

from gradhomog.cli import main
from tests.hostile.plugins import plugin

UNDOCUMENTED = plugin("def mix(self, step): ...").replace('summary="faulty"', 'summary=""')


@pytest.fixture(autouse=True)
def storage(monkeypatch, tmp_path):
    """Set the folder of hypothesis's files for each test; otherwise the command sets it for the whole process."""
    monkeypatch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", str(tmp_path / "hypothesis"))


def parse_strict_json(text):
    """Parse JSON; fail on NaN and infinity, which are not valid JSON."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("static(weights=[1,2])", "homogenizer static(weights=[1, 2]) of gradhomog "),
        ("gradhomog:static", "homogenizer gradhomog:static of gradhomog "),
        ("fomaml", "learner fomaml of gradhomog "),
    ],
)
def test_a_plugin_of_any_kind_is_found_by_its_name_and_the_table_printed(name, subject, capsys):
    assert main(["check", name, "--only", "documented"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].startswith(subject)
    assert lines[2:4] == ["  ✓ documented  passed", ""]
    assert lines[4].startswith("1 passed; ")
    assert printed.err == ""


def test_kind_selects_among_plugins_of_the_same_name(gradhomog_install, capsys):
    gradhomog_install("my-static", "", plugin="static", target="gradhomog_adapters.fomaml", kind="learners")
    assert main(["check", "static", "--only", "documented"]) == 0
    assert main(["check", "static", "--only", "documented", "--kind", "learners"]) == 0
    subjects = [line for line in capsys.readouterr().out.splitlines() if " of " in line]
    assert [subject.partition(" of ")[0] for subject in subjects] == ["homogenizer static", "learner static"]


def test_json_is_one_list_of_reports(capsys):
    assert main(["check", "static", "fomaml", "--only", "documented", "--json"]) == 0
    first, second = parse_strict_json(capsys.readouterr().out)
    assert first["subject"].startswith("homogenizer static of ")
    assert second["subject"].startswith("learner fomaml of ")
    assert first["passed"] is second["passed"] is True
    (result,) = first["results"]
    assert {**result, "seconds": 0} == {
        "check": "documented", "outcome": "passed", "message": "", "example": {}, "seconds": 0,
    }  # fmt: skip


# -- failures --------------------------------------------------------------------------------------------------------


def test_a_failure_of_any_plugin_is_exit_code_1(gradhomog_install, capsys):
    bad = gradhomog_install("bad-one", UNDOCUMENTED)
    assert main(["check", bad, "static", "--only", "documented"]) == 1
    out = capsys.readouterr().out
    assert "  ✗ documented  failed\n      `summary` must be one line" in out
    assert "  ✓ documented  passed" in out


def test_an_expected_failure_is_exit_code_0_and_its_reason_is_printed(gradhomog_install, capsys):
    bad = gradhomog_install("bad-one", UNDOCUMENTED)
    expectations = ["--expect", "documented = a draft = a start", "--expect", "devices=slow"]
    assert main(["check", bad, "--only", "documented", *expectations]) == 0
    assert "  x documented  expected\n      a draft = a start (`summary` must be" in capsys.readouterr().out


# -- invalid input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["statik"], "Did you mean 'static'?"),
        (
            ["landscape"],
            "landscape is a problem; `gradhomog check` checks homogenizers and learners. Run its own tests.",
        ),
        (["glyphs:greek"], "glyphs:greek is a domain; `gradhomog check` checks homogenizers and learners. Call "),
        (["static", "--only", "documentd"], "['documentd'] matches none of: documented, "),
        (["static", "--expect", "documented"], "`--expect` must be CHECK=REASON, with a reason; got 'documented'."),
    ],
)
def test_invalid_input_is_one_message_and_exit_code_2(arguments, message, capsys):
    assert main(["check", *arguments, "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("gradhomog: ")
    assert message in printed.err
    assert printed.out == ""


MISSING = """
import sys
import pytest
sys.modules["hypothesis"] = None
import gradhomog.testing
from gradhomog.cli import main

for name in ("check_homogenizer", "check_learner", "checks", "jacobians", "parametrize_with_checks"):
    with pytest.raises(gradhomog.ConfigError) as raised:
        getattr(gradhomog.testing, name)
    print(raised.value)
print(main(["check", "static"]))
del sys.modules["hypothesis"]
sys.modules["pytest"] = None
sys.modules.pop("gradhomog.testing.kits", None)
try:
    gradhomog.testing.parametrize_with_checks
except gradhomog.ConfigError as error:
    print(error)
print(main(["check", "static", "--only", "finite_*", "--json"]))
"""


ADVICE = "which is not installed. Run: pip install 'gradhomog[check]'"


@pytest.mark.slow
def test_without_hypothesis_or_pytest_errors_name_the_extra_and_no_files_are_written(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "HYPOTHESIS_STORAGE_DIRECTORY"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", MISSING],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert [line.partition(" needs ")[2] for line in lines[:5]] == [f"hypothesis, {ADVICE}"] * 5
    assert lines[5] == "2"
    assert done.stderr == f"gradhomog: gradhomog.testing.check_homogenizer needs hypothesis, {ADVICE}\n"
    assert lines[6] == f"gradhomog.testing.parametrize_with_checks needs pytest, {ADVICE}"
    assert (lines[7], lines[-1]) == ("[", "0")
    assert list(tmp_path.iterdir()) == []
