"""The structure of the packages: imports, lengths of calls, public names."""

from __future__ import annotations

import ast
import functools
import importlib.util
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType

import pytest
import torch

import gradhomog
import gradhomog.experiments
import gradhomog.testing

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"


def python_files(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.py"))
    assert found, f"no Python file in {folder}"
    return found


WHOLE = python_files(ROOT / "gradhomog")
EXPERIMENTS = [path for path in WHOLE if (ROOT / "gradhomog" / "experiments") in path.parents]
CLI = [path for path in WHOLE if (ROOT / "gradhomog" / "cli") in path.parents or path.name == "__main__.py"]
CORE = [path for path in WHOLE if path not in (*EXPERIMENTS, *CLI)]
PLUGINS = python_files(ROOT / "plugins")
ADAPTERS = python_files(ROOT / "adapters")
PACKAGES = [*WHOLE, *PLUGINS, *ADAPTERS]


listed = pytest.mark.parametrize(
    "package", [gradhomog, gradhomog.experiments, gradhomog.testing], ids=lambda package: package.__name__
)
"""The packages that list their public names and import them on first use."""


MODULES = {"files", "keyed"}
"""Public names that are modules."""


def source_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache  # each file is read by several tests
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path, nodes: Iterator[ast.AST] | None = None) -> set[str]:
    """Return the full dotted names that a file imports anywhere, including `import_module("name")`."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    package = package[1:] if package[0] in ("plugins", "adapters") else package
    found: set[str] = set()
    for node in nodes or ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = list(package[: len(package) - node.level + 1]) if node.level else []
            home = ".".join([*parts, *([node.module] if node.module else [])])
            found.update(f"{home}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                found.add(str(node.args[0].value))
    return found


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def offences(paths: list[Path], *packages: str) -> list[str]:
    return [f"{source_name(p)} imports {n}" for p in paths for n in sorted(imports(p)) if within(n, *packages)]


def at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run when a module is imported: neither those in functions nor those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        yield node
        yield from at_import(node)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import a.b as c", {"a.b"}),
        ("def f():\n    from a import b, c", {"a.b", "a.c"}),
        ("from . import x", {"gradhomog.experiments.x"}),
        ("from ..rows import y", {"gradhomog.rows.y"}),
        ("importlib.import_module('a.b')", {"a.b"}),
    ],
)
def test_the_import_reader_finds_every_form_of_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, found: set[str]
) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "gradhomog" / "experiments" / "module.py"
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert imports(path) == found


FORBIDDEN = [
    (CORE, ("gradhomog_plugins", "gradhomog_data", "gradhomog_adapters", "gradhomog.experiments", "gradhomog.cli")),
    ([*EXPERIMENTS, *CLI], ("gradhomog_plugins", "gradhomog_adapters", "gradhomog_data")),  # they load them by name
    (EXPERIMENTS, ("gradhomog.cli",)),
    (PLUGINS, ("gradhomog_adapters",)),
    (ADAPTERS, ("gradhomog_plugins",)),
    ([*WHOLE, *PLUGINS], ("torchopt",)),
    ([*PACKAGES, *python_files(EXAMPLES)], ("plugins", "adapters", "tests", "docs")),
]
"""Files, and the packages that they do not import."""


def test_packages_import_no_package_above_them() -> None:
    assert [offence for paths, packages in FORBIDDEN for offence in offences(paths, *packages)] == []
    assert not [name for name in ("plugins", "adapters") if (ROOT / name / "__init__.py").exists()]


def test_plugins_adapters_and_examples_use_public_names_only() -> None:
    public = {"gradhomog", "gradhomog.__version__", *(f"gradhomog.{name}" for name in gradhomog.__all__)}
    of_tests = public | {f"gradhomog.testing.{name}" for name in gradhomog.testing.__all__}
    found = []
    for path in [*PLUGINS, *ADAPTERS, *python_files(EXAMPLES)]:
        used = {name for name in imports(path) if within(name, "gradhomog")}
        used |= {
            f"gradhomog.{node.attr}"
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "gradhomog"
        }
        private = used - (of_tests if path.name.startswith("test_") else public)
        found += [f"{source_name(path)} uses {name}" for name in sorted(private)]
    assert found == []


def test_commands_import_nothing_heavy_when_they_are_imported() -> None:
    heavy = ("torch", "torchopt", "numpy", "scipy", "jinja2", "matplotlib", "PIL", "gradhomog.experiments")
    found = []
    for path in CLI:
        names = imports(path, at_import(parsed(path)))
        found += [f"{source_name(path)} imports {name}" for name in sorted(names) if within(name, *heavy)]
    assert found == []


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] in ("plugins", "adapters") else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circular_imports(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return groups of modules that import each other, directly or through others."""
    reached: dict[str, set[str]] = {}
    for start in edges:
        seen, stack = set[str](), [start]
        while stack:
            stack += [name for name in edges.get(stack.pop(), ()) if name not in seen and not seen.add(name)]
        reached[start] = seen
    groups = {frozenset(n for n in edges if n in reached[m] and m in reached[n]) for m in edges if m in reached[m]}
    return sorted(sorted(group) for group in groups)


def test_the_search_for_circular_imports_finds_exactly_the_one_there_is() -> None:
    assert circular_imports({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


def test_there_are_no_circular_imports_including_those_for_typing() -> None:
    """Except through the package itself, whose public names are imported on first use."""
    modules = {module_of(path) for path in PACKAGES}
    edges = {}
    for path in PACKAGES:
        if path == ROOT / "gradhomog" / "__init__.py":
            continue
        found = {name if name in modules else name.rpartition(".")[0] for name in imports(path)}
        edges[module_of(path)] = (found & modules) - {"gradhomog", module_of(path)}
    assert circular_imports(edges) == []


@pytest.mark.parametrize(("text", "calls", "files"), [("none", 14, 6), ("pcgrad", 36, 11)])
def test_a_step_calls_few_functions(text: str, calls: int, files: int) -> None:
    """Count the calls of gradhomog's Python functions, and their files, in the second `combine` on a matrix."""
    pipe, jacobian = gradhomog.pipeline(text), torch.randn(4, 1000)
    pipe.combine(jacobian)
    seen: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(ROOT):
            seen.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        pipe.combine(jacobian)
    finally:
        sys.setprofile(None)
    seen = [name for name in seen if name != __file__]
    assert 0 < len(seen) <= calls
    assert len(set(seen)) <= files


BUDGETS = {
    "gradhomog": 590,
    "gradhomog/autograd": 2884,
    "gradhomog/cli": 1040,
    "gradhomog/diagnosis": 941,
    "gradhomog/experiments": 5983,
    "gradhomog/learners": 798,
    "gradhomog/ranks": 488,
    "gradhomog/registry": 776,
    "gradhomog/rows": 548,
    "gradhomog/scaffold": 152,
    "gradhomog/solvers": 408,
    "gradhomog/step": 1274,
    "gradhomog/testing": 2436,
    "plugins": 4248,
    "plugins/gradhomog_data": 3722,
    "adapters": 4047,
    "tests": 33010,
}
"""The largest number of lines of code in each folder, without its packages that are listed too.

The numbers only go down; a commit that raises one states the reason.
"""

WITHOUT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of_code(text: str) -> int:
    """Return the number of lines with a token of the program, without docstrings, comments and blank lines."""
    documentation = set[int]()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for entry in body if isinstance(body, list) else ():
            if (
                isinstance(entry, ast.Expr)
                and isinstance(entry.value, ast.Constant)
                and isinstance(entry.value.value, str)
            ):
                documentation.update(range(entry.lineno, (entry.end_lineno or 0) + 1))
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in WITHOUT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documentation)


def test_lines_of_code_are_counted_without_documentation_and_comments() -> None:
    text = '"""A\nmodule."""\n\nimport a  # why\n\n\ndef f(\n    x,\n):\n    """Doc."""\n    # comment\n    return x\n'
    assert lines_of_code(text) == 5


def test_folders_keep_their_budgets_of_lines_of_code() -> None:
    lines = dict.fromkeys(BUDGETS, 0)
    for path in [path for folder in BUDGETS if "/" not in folder for path in python_files(ROOT / folder)]:
        folder = next(str(f) for f in path.relative_to(ROOT).parents if str(f) in BUDGETS)
        lines[folder] += lines_of_code(path.read_text(encoding="utf-8"))
    assert {folder: count for folder, count in lines.items() if count > BUDGETS[folder]} == {}


def keywords(path: Path, *functions: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the place of each call of a function, by its last two names, and its keywords as text."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(functions):
            place = f"{source_name(path)}:{node.lineno}"
            yield place, {keyword.arg or "**": ast.unparse(keyword.value) for keyword in node.keywords}


def test_files_are_loaded_as_data_never_as_code() -> None:
    torch_loads = [call for path in PACKAGES for call in keywords(path, "torch.load")]
    assert torch_loads
    assert [place for place, given in torch_loads if given.get("weights_only") != "True"] == []
    numpy_loads = [call for path in PACKAGES for call in keywords(path, "np.load", "numpy.load", "read_array")]
    assert [place for place, given in numpy_loads if given.get("allow_pickle") != "False"] == []
    assert [place for path in PACKAGES for place, _ in keywords(path, "pickle.load", "jit.load")] == []
    assert offences([*EXPERIMENTS, *CLI, *PLUGINS], "pickle", "marshal", "shelve") == []
    # `from torch import load` would escape the search above.
    assert offences(PACKAGES, "torch.load", "numpy.load", "pickle.load") == []


def test_every_module_of_the_packages_has_a_docstring() -> None:
    without = [source_name(path) for path in PACKAGES if (tree := parsed(path)).body and not ast.get_docstring(tree)]
    assert without == []


@listed
def test_the_public_names_are_sorted_and_can_be_imported(package: ModuleType) -> None:
    assert package.__all__ == sorted(package.__all__)
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(dir(package)) == set(package.__all__)
    with pytest.raises(AttributeError, match=f"{package.__name__} attribute pipelin"):
        _ = package.pipelin


@listed
def test_no_public_name_is_hidden_by_a_module_of_the_same_name(package: ModuleType) -> None:
    # Importing `gradhomog.x` sets the attribute `x` of the package, so that `__getattr__` is not called for it.
    hidden = [name for name in package.__all__ if importlib.util.find_spec(f"{package.__name__}.{name}")]
    assert [name for name in hidden if name not in MODULES] == []
