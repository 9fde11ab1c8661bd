"""Contents of the wheel, its entry points, and the imports of `import gradhomog`."""

import configparser
import importlib.metadata
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import gradhomog.cli

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = (
    "gradhomog", "gradhomog_adapters", "gradhomog_data", "gradhomog_observers", "gradhomog_papers", "gradhomog_plugins",
)  # fmt: skip
DECLARED = {**PROJECT["entry-points"], "console_scripts": PROJECT["scripts"]}
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "gradhomog", "plugins", "adapters")


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Built from a copy, so that no build files remain in the tree.
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        (source / name).parent.mkdir(exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy(ROOT / name, source / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", str(target), str(source))
    [built] = target.iterdir()
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_versions_that_were_tested_begin_at_the_declared_lower_bounds_and_are_on_the_page_of_installation() -> None:
    script = (ROOT / ".ci" / "versions").read_text(encoding="utf-8")
    rows = re.findall(r'^    "([\d.]+) ([\d.]+) ([\d.]+)"$', script, re.MULTILINE)
    bounds = {Requirement(text).name: str(Requirement(text).specifier) for text in PROJECT["dependencies"]}
    lowest = PROJECT["requires-python"], bounds["torch"], bounds["numpy"]
    for version, bound in zip(rows[0], lowest, strict=True):
        assert Version(version) == Version(bound.removeprefix(">="))
    page = " ".join((ROOT / "docs" / "guide" / "install.md").read_text(encoding="utf-8").split())
    for python, torch, numpy in rows:
        assert f"Python {python} with PyTorch {torch} and NumPy {numpy}" in page


@pytest.mark.slow
def test_the_wheel_holds_its_packages_with_all_modules_templates_and_papers_and_nothing_else(names: set[str]) -> None:
    info = f"gradhomog-{gradhomog.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {*PACKAGES, info}
    assert f"{info}/licenses/LICENSE" in names
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    contents = (
        *((folder, "gradhomog*/**/*.py") for folder in (ROOT, ROOT / "plugins", ROOT / "adapters")),
        (ROOT, "gradhomog/experiments/report/templates/*"),
        (ROOT, "gradhomog/experiments/report/figures/*.mplstyle"),
        (ROOT, "gradhomog/**/*.toml"),
        (ROOT / "plugins", "gradhomog_*/**/*.toml"),
    )
    for folder, pattern in contents:
        files = {path.relative_to(folder).as_posix() for path in folder.glob(pattern)}
        assert files, pattern
        assert files <= names


@pytest.mark.slow
def test_every_declared_entry_point_is_in_the_wheel_and_names_a_module_of_it(wheel: Path, names: set[str]) -> None:
    parser = configparser.ConfigParser(delimiters=("=",))
    with zipfile.ZipFile(wheel) as archive:
        [text] = [archive.read(name).decode() for name in names if name.endswith("/entry_points.txt")]
    parser.read_string(text)
    assert {group: dict(parser[group]) for group in parser.sections()} == DECLARED
    for points in DECLARED.values():
        for value in points.values():
            module = value.partition(":")[0].replace(".", "/")
            assert {f"{module}.py", f"{module}/__init__.py"} & names, f"{value} is not a module of the wheel"


@pytest.mark.slow
def test_the_installed_wheel_lists_and_loads_its_plugins_in_a_clean_process(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip("install", "--no-deps", "--no-build-isolation", "--target", str(site), str(wheel))
    code = (
        "import json, gradhomog, gradhomog.registry\n"
        "registry = gradhomog.Registry()\n"
        "names = {f'gradhomog.{k}': {i.name: i.module for i in registry.list(k) if i.distribution == 'gradhomog'}"
        " for k in gradhomog.registry.KINDS}\n"
        "pipe = gradhomog.pipeline('gradhomog:pcgrad')\n"
        "import gradhomog_adapters, gradhomog_observers, gradhomog_plugins\n"
        "files = [m.__file__ for m in (gradhomog, gradhomog_adapters, gradhomog_observers, gradhomog_plugins)]\n"
        "print(json.dumps([names, files]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    environment.pop("GRADHOMOG_DISABLE", None)
    output = subprocess.run(
        [sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, env=environment
    ).stdout
    listed, files = json.loads(output)
    ours = {group: points for group, points in PROJECT["entry-points"].items() if group.startswith("gradhomog.")}
    assert listed == ours
    assert all(Path(file).is_relative_to(site) for file in files)  # not from the editable installation


def test_the_installed_entry_points_are_those_of_the_tree() -> None:
    installed: dict[str, dict[str, str]] = {}
    for point in importlib.metadata.distribution("gradhomog").entry_points:
        installed.setdefault(point.group, {})[point.name] = point.value
    assert installed == DECLARED, "the installed entry points differ from pyproject.toml: run pip install -e ."


def test_the_version_of_the_package_is_that_of_pyproject_toml() -> None:
    assert PROJECT["version"] == gradhomog.__version__


COMMANDS = ", ".join(f"gradhomog.cli.{module.name}" for module in pkgutil.iter_modules(gradhomog.cli.__path__))
LIGHT = [
    ("import gradhomog, gradhomog.cli", {"gradhomog.registry", "gradhomog.experiments"}),
    (
        "import gradhomog.registry.specs, gradhomog.registry.expression, gradhomog.registry.options",
        {"gradhomog.experiments"},
    ),
    (f"import {COMMANDS}", {"gradhomog.experiments"}),
    ("assert 'pcgrad' in gradhomog.available() and 'maml' in gradhomog.available('learners')", set()),
    *(
        (f"try: gradhomog.cli.main({arguments!r})\nexcept SystemExit: pass", set())
        for arguments in (["--help"], ["list"], ["list", "--json"], ["env"], ["new", "x"], ["data", "list"])
    ),
]
"""Statements that import nothing heavy, and further modules that one of them does not import."""


def test_nothing_heavy_is_imported_before_it_is_needed(tmp_path: Path) -> None:
    """In one process, which has imported nothing before."""
    heavy = {"torch", "torchopt", "numpy", "matplotlib", "PIL", "scipy", "jinja2", "gradhomog_plugins",
             "gradhomog_adapters"}  # fmt: skip
    code = "import sys\n"
    for statement, more in LIGHT:
        code += f"{statement}\nfound = {heavy | more!r} & set(sys.modules)\nassert not found, ({statement!r}, found)\n"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr
