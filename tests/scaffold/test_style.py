"""The generated code passes ruff, its formatter and strict mypy with the settings of this repository."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gradhomog.scaffold.project import LONGEST, names, project, write_project
from tests.scaffold.conftest import KINDS

ROOT = Path(__file__).parents[2]
RUFF = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]


def python(*arguments: str, cwd: Path) -> None:
    # A process: the linter and the type checker are programs.
    done = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow_after_first
@pytest.mark.parametrize("kind", KINDS.values())
@pytest.mark.parametrize("name", ["x", "-".join(["abcdefghi", "abcdefghi", "abcdefgh"])])
def test_the_linter_and_the_formatter_accept_the_code_for_every_name(name: str, kind: str, tmp_path: Path) -> None:
    assert len(name) <= LONGEST
    folder = write_project(project(names(name), kind), tmp_path)
    settings = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]
    assert settings["line-length"] == RUFF["line-length"]
    python("ruff", "check", "--no-cache", ".", cwd=folder)
    rules = [",".join(RUFF["lint"][key]) for key in ("select", "ignore")]
    python("ruff", "check", "--no-cache", "--select", rules[0], "--ignore", rules[1], ".", cwd=folder)
    python("ruff", "format", "--no-cache", "--check", ".", cwd=folder)


TYPED_USE = """
import torch
import gradhomog

pipe = gradhomog.pipeline("none")
direction: torch.Tensor = pipe.combine(torch.eye(2), losses=[1.0, 2.0])
by_name: dict[str, torch.Tensor] = pipe.combine({"weight": torch.eye(2)}, domains=["a", "b"])
of_jacobian: dict[str, torch.Tensor] = pipe.combine(gradhomog.as_jacobian(torch.eye(2)))
"""


@pytest.mark.slow
def test_the_type_checker_accepts_the_code_and_a_typed_direction(projects: dict[str, Path], tmp_path: Path) -> None:
    use = tmp_path / "typed_use.py"
    use.write_text(TYPED_USE, encoding="utf-8")
    # Run from the root with its settings, so that mypy reads torch from its cache, which saves 15 seconds.
    python("mypy", "--strict", "--config-file", "pyproject.toml", str(use), *map(str, projects.values()), cwd=ROOT)
