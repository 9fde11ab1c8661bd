"""Run the files and commands of `docs/guide/write-a-homogenizer.md` in a fresh virtual environment; compare outputs."""

import os
import re
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.docs import console, pages

PAGE = pages.text("guide/write-a-homogenizer.md")
FILES = [step for step in console.steps(PAGE) if isinstance(step, console.File)]


def shortened(step: console.File | console.Command) -> console.File | console.Command:
    """The run file with fewer steps and episodes, and tests with fewer examples: less time, and the same output."""
    if not isinstance(step, console.File):
        return step
    fewer = re.sub(r"^(steps|\w*episodes) = \d+$", r"\1 = 2", step.content, flags=re.MULTILINE)
    return console.File(step.path, fewer.replace('(["even(power=0.5)"])', '(["even(power=0.5)"], fast=True)'))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables of a shell in a fresh virtual environment on top of this one: nothing is installed into this one."""
    root = tmp_path / "environment"
    venv.create(root, with_pip=False, symlinks=True)
    home = sysconfig.get_path("purelib", "venv", vars={"base": str(root), "platbase": str(root)})
    # `addsitedir`, not a bare path: an editable gradhomog is itself found by a .pth file.
    (Path(home) / "outer.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    command = root / "bin" / "gradhomog"
    main = "import sys\nfrom gradhomog.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    command.write_text(f"#!{root / 'bin' / 'python'}\n{main}")
    command.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON", "GRADHOMOG"))}
    return {
        **kept,
        "PATH": f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(root),
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        # The dependencies of `pip install .`, the build backend and gradhomog, are installed in the outer environment.
        "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore",
    }  # fmt: skip


@pytest.mark.slow
def test_every_command_prints_the_output_on_the_page(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    complaints = console.run([shortened(step) for step in console.steps(PAGE)], folder, environment, timeout=300)
    assert not complaints, "\n\n".join(complaints)


def test_it_starts_from_eleven_lines_of_python_and_six_of_toml() -> None:
    first = {file.path: len(file.content.splitlines()) for file in reversed(FILES)}
    assert (first["gradhomog_even.py"], first["pyproject.toml"]) == (11, 6)
