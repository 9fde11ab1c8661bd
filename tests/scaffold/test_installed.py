"""The projects as wheels in a clean environment: they are listed, run in a comparison, and pass their tests."""

import json
import math
import re
from pathlib import Path

import pytest

from gradhomog.experiments.results.records import records
from tests.experiments.run_helpers import WITHOUT_FIGURES
from tests.scaffold.conftest import KINDS, Environment

pytestmark = pytest.mark.slow

TINY = [
    "seeds=1", "network.width=4", "network.size=16", "episodes.ways=3", "episodes.tasks=2",
    "train.steps=3", "train.inner_steps=1", "train.validation_episodes=2", "test.episodes=4",
]  # fmt: skip


def test_they_are_listed_without_being_imported(environment: Environment) -> None:
    code = (
        "import sys\n"
        "from gradhomog.cli import main\n"
        "main(['list', '--json'])\n"
        "found = {'torch', 'numpy', 'gradhomog_sign_vote', 'gradhomog_ridge_head'}\n"
        "assert not found & set(sys.modules)\n"
    )
    listed = {info["name"]: info for info in json.loads(environment.run("-c", code)) if info["name"] in KINDS}
    assert {name: info["kind"] for name, info in listed.items()} == KINDS
    for name, info in listed.items():
        assert info["distribution"] == "gradhomog-" + name.replace("_", "-")
        assert info["version"] == "0.1.0"


def test_they_are_used_by_name_in_a_comparison(environment: Environment, tmp_path: Path) -> None:
    settings = [
        'learner=["ridge_head", "maml"]', 'homogenizers=["none", "sign_vote(power=1)"]',
        'domains.train=["glyphs:greek"]', 'domains.test=["glyphs:arrows"]', *TINY,
    ]  # fmt: skip
    arguments = [part for setting in settings for part in ("--set", setting)]
    command = (*WITHOUT_FIGURES, "compare", "--jobs=1", *arguments, "--out", "out", "--json")
    data = json.loads(environment.run(*command, cwd=tmp_path))
    assert data["failures"] == {}
    rows = {(row["learner"], row["label"]): row["score"]["mean"] for row in data["rows"]}
    assert set(rows) == {(a, b) for a in ("ridge_head", "maml") for b in ("plain", "sign_vote(power=1)")}
    assert all(0 <= score <= 1 and math.isfinite(score) for score in rows.values())
    start = next(record for record in records(tmp_path / "out") if record["event"] == "start")
    assert start["versions"]["gradhomog-sign-vote"] == start["versions"]["gradhomog-ridge-head"] == "0.1.0"


def test_the_programs_in_the_readme_files_run(environment: Environment) -> None:
    programs = [
        program
        for folder in environment.projects.values()
        for program in re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    ]
    assert len(programs) == len(KINDS)
    environment.run("-c", "\n".join(programs))


@pytest.mark.parametrize("name", KINDS)
def test_its_own_tests_pass_unmodified(environment: Environment, name: str) -> None:
    output = environment.run("-m", "pytest", "-v", "-p", "no:cacheprovider", cwd=environment.projects[name])
    # The kit has no checks of problems.
    assert output.count(f"::test_it_conforms[{name}") > 20 or KINDS[name] == "problems"
    summary = output.strip().splitlines()[-1]
    assert " passed" in summary
    assert "skipped" not in summary
    assert "xfailed" not in summary


def test_the_tests_and_docstrings_of_the_example_pass(environment: Environment) -> None:
    options = ("-v", "-p", "no:cacheprovider", "--doctest-modules", "--pyargs", "tests", "gradhomog_signvote")
    output = environment.run("-m", "pytest", *options, cwd=environment.example)
    assert " passed" in output
    assert "skipped" not in output
    assert "_signvote.SignVote PASSED" in output


def test_building_and_testing_a_project_leaves_no_files_in_it(environment: Environment) -> None:
    for name, folder in environment.projects.items():
        assert {path.name for path in folder.iterdir()} <= {
            ".gitignore", ".hypothesis", "LICENSE", "README.md", "pyproject.toml", "tests", f"gradhomog_{name}",
        }  # fmt: skip
