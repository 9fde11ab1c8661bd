"""Each hook has a page that documents every name, with an example that installs, works and conforms."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import logging
import re
import tomllib
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import gradhomog
from gradhomog import keyed
from gradhomog.experiments.results import events
from gradhomog.learners.domains import Domain
from gradhomog.learners.learner import Learner
from gradhomog.learners.results import TaskRow
from gradhomog.learners.tasks import Task
from gradhomog.registry import Registry, installed, specs
from gradhomog.registry.specs import KINDS, LEARNER_TRAITS, TRAITS
from gradhomog.rows import Jacobian
from gradhomog.step.homogenizer import Homogenizer
from gradhomog.step.step import StageResult, Step
from gradhomog.testing import check_domain, check_homogenizer, check_learner
from tests.docs import pages


def signature(function: Callable[..., Any]) -> str:
    """The exact signature of a function of a module with `from __future__ import annotations`.

    >>> def weigh(self, rows: Rows, *, mode: str = "own") -> Tensor: ...
    >>> signature(weigh)
    "weigh(self, rows: Rows, *, mode: str = 'own') -> Tensor"
    """
    text = str(inspect.signature(function))
    return function.__name__ + re.sub(r"""(: |-> )(['"])(.*?)\2""", r"\1\3", text)


HOOKS = {name: found for name, found in vars(specs).items() if name.startswith("gradhomog_")}


def page(hook: str) -> str:
    return pages.text(f"guide/hooks/{hook}.md")


def public(cls: type) -> Iterator[tuple[str, FunctionType]]:
    for name, found in vars(cls).items():
        if isinstance(found, FunctionType) and not name.startswith("_"):
            yield name, found


def test_there_is_a_page_for_every_hook_and_no_other_with_its_signature_as_title() -> None:
    assert {path.stem for path in (pages.DOCS / "guide" / "hooks").glob("*.md")} == set(HOOKS)
    for hook, function in HOOKS.items():
        assert page(hook).splitlines()[0] == f"# `{signature(function)}`"


SPECS: dict[str, type] = dict(KINDS.values())
AUTHORED = {"gradhomog_homogenizer": Homogenizer, "gradhomog_learner": Learner, "gradhomog_domain": Domain}
STAGES = ("attach", "begin", "transform", "choose", "mix", "rows", "update", "paper_scale")


def default_of(field: dataclasses.Field[object]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f" = {field.default_factory()!r}"
    return "" if field.default is dataclasses.MISSING else f" = {field.default!r}".replace("''", '""')


def required(hook: str) -> Iterator[str]:
    """Yield the texts that the page of a hook must contain."""
    yield from ("**When it is called:**", "**What must be returned:**", '[project.entry-points."gradhomog.')
    for name, parameter in inspect.signature(HOOKS[hook]).parameters.items():
        yield f"- `{name}: {parameter.annotation}`:"
    for field in dataclasses.fields(SPECS[hook]) if hook in SPECS else ():
        yield f"- `{field.name}: {field.type}{default_of(field)}`:"
    for name, method in public(AUTHORED[hook]) if hook in AUTHORED else ():
        if hook == "gradhomog_homogenizer" or name in AUTHORED[hook].__abstractmethods__:
            yield f"`{signature(method)}`"
    if hook == "gradhomog_domain":
        for name, annotation in Domain.__annotations__.items():
            yield f"- `{name}: {annotation}{f' = {vars(Domain)[name]!r}' if name in vars(Domain) else ''}`:"
    if hook == "gradhomog_learner":
        yield from (f"`{field.name}`" for cls in (Task, TaskRow) for field in dataclasses.fields(cls))
    if hook == "gradhomog_homogenizer":
        yield from (f"`step.{name}" for name in vars(Step) if not name.startswith("_"))
        yield from (f"- `{name}`:" for name in StageResult._fields)
        yield from (f"`{name}(" for name, found in vars(keyed).items()
                    if isinstance(found, FunctionType) and name[0] != "_")  # fmt: skip


@pytest.mark.parametrize("hook", HOOKS)
def test_a_page_documents_every_name_and_links_to_code_in_the_tree(hook: str) -> None:
    text = page(hook)
    in_one_line = " ".join(text.split())  # inline code may be wrapped
    assert [found for found in required(hook) if found not in text and found not in in_one_line] == []
    links = re.findall(r"\]\((\.\./\.\./[^)#]+\.py)\)", text)
    assert links
    assert all((pages.DOCS / "guide" / "hooks" / link).is_file() for link in links)


def test_every_argument_of_a_stage_is_explained_under_its_heading() -> None:
    for stage in STAGES:
        method = vars(Homogenizer)[stage]
        section = page("gradhomog_homogenizer").split(f"### `{signature(method)}`")[1].split("\n##")[0]
        for argument in list(inspect.signature(method).parameters)[1:]:
            assert f"- `{argument}`:" in section, (stage, argument)


def test_the_stages_are_all_methods_that_raise_unless_overridden() -> None:
    assert set(STAGES) == {
        name for name, found in public(Homogenizer) if "NotImplementedError" in found.__code__.co_names
    }


TABLES = {"gradhomog_homogenizer": ("homogenizers", TRAITS), "gradhomog_learner": ("learners", LEARNER_TRAITS)}


def test_every_trait_has_a_sentence_and_the_checks_that_it_enables() -> None:
    from gradhomog.testing import checks

    for hook, (kind, traits) in TABLES.items():
        for trait in traits:
            cells = [cell.strip() for cell in pages.row(page(hook), trait).split("|")[1:-1]]
            assert len(cells) == 3, trait
            assert cells[1].endswith("."), trait
            enabled = {check.name for check in checks(kind) if check.claim == trait}  # type: ignore[arg-type]
            assert set(re.findall(r"`(\w+)`", cells[2])) == enabled, trait


@pytest.mark.parametrize(("heading", "home"), [("### Jacobian", Jacobian), ("### State by name", keyed)])
def test_the_methods_in_a_table_exist(heading: str, home: object) -> None:
    table = page("gradhomog_homogenizer").split(f"\n{heading}\n")[1].split("\n#")[0]
    names = re.findall(r"`(\w+)\(", "".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)))
    assert len(names) >= 8
    assert [name for name in names if not hasattr(home, name)] == []


@pytest.mark.parametrize("event", sorted({*events.KINDS, "result"}))
def test_an_event_that_observers_receive_has_the_fields_of_the_table(event: str) -> None:
    kind = events.KINDS.get(event, events.Result)
    known = {"event", "version", "run", "learner", "homogenizers", "seed", "digest", "files", "sha256"}
    documented = set(re.findall(r"`(\w+)`", pages.row(page("gradhomog_observer"), event)))
    assert documented >= set(typing.get_type_hints(kind)) - known
    assert documented <= set(typing.get_type_hints(kind)) | {event}


PRINTING = [
    (hook, block)
    for hook in HOOKS
    for block in pages.blocks(page(hook), "python")
    if re.search(r"^print\(|^ +print\(.*  # ", block, re.M)
]


@pytest.mark.parametrize(("hook", "block"), PRINTING, ids=[hook for hook, _ in PRINTING])
def test_an_example_prints_the_output_on_the_page(hook: str, block: str) -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(block, hook, "exec"), {"__name__": "example"})
    assert output.getvalue().splitlines() == re.findall(r"^ *print\(.*\)  # (.*)$", block, re.M)


def module_of(hook: str) -> tuple[str, str]:
    """Name (from the first line) and text of the module on a hook's page."""
    text = pages.blocks(pages.text(f"guide/hooks/{hook}.md"), "python")[0]
    return text.splitlines()[0].removeprefix("# ").removesuffix(".py"), text


def install(hook: str, gradhomog_install: Any) -> str:
    """Install a page's module as its entry point declares; returns the name of the plugin."""
    module, text = module_of(hook)
    [written] = pages.blocks(pages.text(f"guide/hooks/{hook}.md"), "toml")
    [(group, names)] = tomllib.loads(written)["project"]["entry-points"].items()
    assert list(names.values()) == [module]
    return gradhomog_install(
        module.replace("_", "-"), text, kind=group.removeprefix("gradhomog."), plugin=next(iter(names))
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "check"), [("gradhomog_homogenizer", check_homogenizer), ("gradhomog_learner", check_learner)]
)
def test_the_plugin_is_made_by_name_and_conforms(gradhomog_install: Any, hook: str, check: Any) -> None:
    report = check(install(hook, gradhomog_install), fast=True)
    assert report.passed, str(report)
    assert "held" not in {result.outcome for result in report}, "it could claim more"


@pytest.mark.slow
def test_the_domain_is_made_by_name_and_conforms(gradhomog_install: Any) -> None:
    name = install("gradhomog_domain", gradhomog_install)
    for variant in ("plane", "space(spread=0.1)"):
        check_domain(gradhomog.domain(f"{name}:{variant}"))
    with pytest.raises(gradhomog.OptionError, match="variant"):
        gradhomog.domain(f"{name}:line")


def test_the_observer_writes_the_losses_of_every_other_step(gradhomog_install: Any, tmp_path: Path) -> None:
    name = install("gradhomog_observer", gradhomog_install)
    _, _, observer = installed().make("observers", name, {"every": 2}, {}, tmp_path)
    observer("start", {"event": "start", "step": 0})
    for step in (1, 5, 10):
        observer("step", {"event": "step", "run": "a", "step": step, "losses": [1.5, 2.0 * step]})
    assert (tmp_path / "losses.csv").read_text() == "1,1.5,2.0\n10,1.5,20.0\n"


def test_the_wrapper_logs_what_is_made(caplog: pytest.LogCaptureFixture) -> None:
    name, text = module_of("gradhomog_make")
    module = ModuleType(name)
    exec(compile(text, name, "exec"), vars(module))
    registry = Registry()
    registry.manager.register(module)
    with caplog.at_level(logging.INFO, "gradhomog_clock"):
        gradhomog.pipeline("static(weights=[1, 3])", registry=registry)
    [message] = caplog.messages
    assert re.fullmatch(r"Static\(weights\) took [\d.]+ ms", message)
