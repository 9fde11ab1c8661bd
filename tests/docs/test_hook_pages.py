"""Each hook has a page that documents every name that an author writes or reads."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import re
import typing
from collections.abc import Iterator
from types import FunctionType

import pytest

from gradhomog import keyed
from gradhomog.experiments.results import events
from gradhomog.learners.domains import Domain
from gradhomog.learners.learner import Learner
from gradhomog.learners.results import TaskRow
from gradhomog.learners.tasks import Task
from gradhomog.registry import hooks
from gradhomog.registry.specs import KINDS, LEARNER_TRAITS, STATISTICS, TRAITS
from gradhomog.rows import Jacobian
from gradhomog.step.homogenizer import Homogenizer
from gradhomog.step.step import StageResult, Step
from tests.docs import pages
from tests.docs.signatures import signature

HOOKS = {name: found for name, found in vars(hooks).items() if name.startswith("gradhomog_")}


def page(hook: str) -> str:
    return pages.text(f"guide/hooks/{hook}.md")


def public(cls: type) -> Iterator[tuple[str, FunctionType]]:
    for name, found in vars(cls).items():
        if isinstance(found, FunctionType) and not name.startswith("_"):
            yield name, found


@pytest.mark.parametrize("hook", HOOKS)
def test_the_title_of_a_page_is_the_signature_of_its_hook(hook: str) -> None:
    assert page(hook).splitlines()[0] == f"# `{signature(HOOKS[hook])}`"


def test_there_is_a_page_for_every_hook_and_no_other() -> None:
    assert {path.stem for path in (pages.DOCS / "guide" / "hooks").glob("*.md")} == set(HOOKS)


@pytest.mark.parametrize(
    ("hook", "argument"),
    [(hook, str(argument)) for hook, found in HOOKS.items() for argument in inspect.signature(found).parameters],
)
def test_every_argument_of_a_hook_is_explained(hook: str, argument: str) -> None:
    annotation = inspect.signature(HOOKS[hook]).parameters[argument].annotation
    assert f"- `{argument}: {annotation}`:" in page(hook)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_page_states_when_the_hook_is_called_and_what_must_be_returned(hook: str) -> None:
    assert "**When it is called:**" in page(hook)
    assert "**What must be returned:**" in page(hook)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_page_shows_an_entry_point_and_links_to_code_in_the_tree(hook: str) -> None:
    assert '[project.entry-points."gradhomog.' in "".join(pages.blocks(page(hook), "toml"))
    links = re.findall(r"\]\((\.\./\.\./[^)#]+\.py)\)", page(hook))
    assert links
    assert all((pages.DOCS / "guide" / "hooks" / link).is_file() for link in links)


@pytest.mark.parametrize(("name", "annotation"), Domain.__annotations__.items())
def test_every_attribute_of_a_domain_is_explained(name: str, annotation: str) -> None:
    default = f" = {vars(Domain)[name]!r}" if name in vars(Domain) else ""
    assert f"- `{name}: {annotation}{default}`:" in page("gradhomog_domain")


SPECS: dict[str, type] = dict(KINDS.values())


@pytest.mark.parametrize(
    ("hook", "field"),
    [(hook, field) for hook, spec in SPECS.items() for field in dataclasses.fields(spec)],
    ids=lambda given: getattr(given, "name", given),
)
def test_every_field_of_a_spec_is_explained_with_its_type_and_default(
    hook: str, field: dataclasses.Field[object]
) -> None:
    default = ""
    if field.default_factory is not dataclasses.MISSING:
        default = f" = {field.default_factory()!r}"
    elif field.default is not dataclasses.MISSING:
        default = f" = {field.default!r}".replace("''", '""')
    assert f"- `{field.name}: {field.type}{default}`:" in page(hook)


METHODS = [("gradhomog_homogenizer", *found) for found in public(Homogenizer)] + [
    (hook, name, found)
    for hook, cls in (("gradhomog_learner", Learner), ("gradhomog_domain", Domain))
    for name, found in public(cls)
    if name in cls.__abstractmethods__
]


@pytest.mark.parametrize(("hook", "name", "method"), METHODS)
def test_every_method_that_an_author_overrides_is_documented_with_its_signature(
    hook: str, name: str, method: FunctionType
) -> None:
    assert signature(method) in pages.inline(page(hook))


STAGES = ("attach", "begin", "transform", "choose", "mix", "rows", "update", "paper_scale")


@pytest.mark.parametrize("stage", STAGES)
def test_every_argument_of_a_stage_is_explained_under_its_heading(stage: str) -> None:
    method = vars(Homogenizer)[stage]
    section = page("gradhomog_homogenizer").split(f"### `{signature(method)}`")[1].split("\n##")[0]
    for argument in list(inspect.signature(method).parameters)[1:]:
        assert f"- `{argument}`:" in section


def test_the_stages_are_all_methods_that_raise_unless_overridden() -> None:
    assert set(STAGES) == {
        name for name, found in public(Homogenizer) if "NotImplementedError" in found.__code__.co_names
    }


TABLES = {"gradhomog_homogenizer": ("homogenizers", TRAITS), "gradhomog_learner": ("learners", LEARNER_TRAITS)}


@pytest.mark.parametrize(
    ("hook", "trait"), [(hook, trait) for hook, (_, traits) in TABLES.items() for trait in sorted(traits)]
)
def test_every_trait_has_a_sentence_and_the_checks_that_it_enables(hook: str, trait: str) -> None:
    from gradhomog.testing import checks

    cells = [cell.strip() for cell in pages.row(page(hook), trait).split("|")[1:-1]]
    assert len(cells) == 3
    assert cells[1].endswith(".")
    enabled = {check.name for check in checks(TABLES[hook][0]) if check.claim == trait}
    assert set(re.findall(r"`(\w+)`", cells[2])) == enabled


@pytest.mark.parametrize("statistic", sorted(STATISTICS))
def test_every_statistic_is_in_the_table(statistic: str) -> None:
    assert f"`step.{statistic}" in pages.row(page("gradhomog_homogenizer"), statistic)


def test_every_attribute_of_a_step_and_of_a_stage_result_is_documented() -> None:
    text = page("gradhomog_homogenizer")
    assert {name for name in vars(Step) if not name.startswith("_") and f"`step.{name}" not in text} == set()
    assert {name for name in StageResult._fields if f"- `{name}`:" not in text} == set()


@pytest.mark.parametrize(("heading", "home"), [("### Jacobian", Jacobian), ("### State by name", keyed)])
def test_the_methods_in_a_table_exist(heading: str, home: object) -> None:
    table = page("gradhomog_homogenizer").split(f"\n{heading}\n")[1].split("\n#")[0]
    names = re.findall(r"`(\w+)\(", "".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)))
    assert len(names) >= 8
    assert [name for name in names if not hasattr(home, name)] == []


def test_every_function_of_state_by_key_is_documented() -> None:
    functions = {name for name, found in vars(keyed).items() if isinstance(found, FunctionType) and name[0] != "_"}
    assert {name for name in functions if f"`{name}(" not in page("gradhomog_homogenizer")} == set()


def test_the_fields_of_tasks_and_task_rows_are_on_the_page_of_learners() -> None:
    names = pages.inline(page("gradhomog_learner"))
    assert {field.name for cls in (Task, TaskRow) for field in dataclasses.fields(cls)} <= names


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
