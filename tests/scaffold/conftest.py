"""Fixtures: one project of each kind, and a virtual environment with wheels of these and of the example of the docs."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from gradhomog.scaffold.project import names, project, write_project

KINDS = {"sign_vote": "homogenizers", "ridge_head": "learners", "two_targets": "problems"}


@dataclass(frozen=True)
class Environment:
    """A virtual environment that can import the packages installed here, but not the other way round."""

    folder: Path
    projects: dict[str, Path]
    example: Path

    def run(self, *arguments: str, cwd: Path | None = None) -> str:
        """Run its Python in a folder that is not on its path, and return the standard output."""
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        for name in ("PYTHONPATH", "GRADHOMOG_DISABLE"):
            environment.pop(name, None)
        done = subprocess.run(
            [str(self.folder / "bin" / "python"), "-P", *arguments],
            capture_output=True, text=True, cwd=cwd or self.folder, env=environment, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "gradhomog-signvote"


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


@pytest.fixture(scope="session")
def projects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folder of one project of each kind, by the plugin's name."""
    into = tmp_path_factory.mktemp("projects")
    return {name: write_project(project(names(name), kind), into) for name, kind in KINDS.items()}


@pytest.fixture(scope="session")
def environment(projects: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder, wheels = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("wheels")
    # A copy, so that no build files remain in the tree.
    example = shutil.copytree(
        EXAMPLE, tmp_path_factory.mktemp("example") / "signvote", ignore=shutil.ignore_patterns("__pycache__", ".*")
    )
    (example / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), *map(str, [*projects.values(), example]))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    [site] = folder.glob("lib/python*/site-packages")
    # `addsitedir`, because a plain path entry would ignore the .pth file of an editable gradhomog.
    folders = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    lines = [f"import site; site.addsitedir({path!r})\n" for path in folders]
    (site / "host.pth").write_text("".join(lines), encoding="utf-8")
    built = [str(wheel) for wheel in wheels.iterdir()]
    pip("--python", str(folder / "bin" / "python"), "install", "--no-deps", "--no-index", *built)
    return Environment(folder, projects, example)
