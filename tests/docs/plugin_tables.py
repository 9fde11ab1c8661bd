"""Generator of `docs/reference/plugins.md`: facts and options of the built-in plugins."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence

from gradhomog.registry import Kind, PluginInfo, Registry, options
from gradhomog.specs import TRAITS, DomainSpec, HomogenizerSpec, LearnerSpec, Spec

HEAD = """\
# The built-in plugins

`gradhomog show NAME` prints the same, with formulas, costs and deviations from the paper. Traits, needs and stages are
described in [gradhomog_homogenizer](../guide/hooks/gradhomog_homogenizer.md), learners and domains in
[gradhomog_learner](../guide/hooks/gradhomog_learner.md) and [gradhomog_domain](../guide/hooks/gradhomog_domain.md).
"""

ROOTS = {"gradhomog_plugins": "plugins/", "gradhomog_adapters": "adapters/"}
STAGES = ("attach", "begin", "transform", "mix", "rows", "update")
SCALE = '`"mean"`: N identical rows give that row; `"paper"`: the scale of the paper.'  # an option of the host


def page(text: str = "") -> str:
    """The whole page, independent of its previous text."""
    registry = Registry(disabled=())
    parts = [HEAD]
    kinds: tuple[Kind, ...] = ("homogenizers", "learners", "domains")
    for kind in kinds:
        parts.append(f"## {kind.capitalize()}\n")
        found = [info for info in registry.list(kind) if info.distribution == "gradhomog"]
        specs = {info: registry.load(kind, info.selector)[1] for info in found}
        if kind == "homogenizers":
            parts.append(claims(specs))
        parts += [entry(info, spec) for info, spec in specs.items()]
    return "\n".join(parts)


def claims(specs: Mapping[PluginInfo, Spec]) -> str:
    """A table of all claims."""
    traits = sorted(TRAITS)
    lines = [f"| | {' | '.join(trait.replace('_', ' ') for trait in traits)} |", "|---" * (len(traits) + 1) + "|"]
    for info, spec in specs.items():
        marks = ["✓" if isinstance(spec, HomogenizerSpec) and trait in spec.traits else " " for trait in traits]
        lines.append(f"| [{info.name}](#{info.name}) | {' | '.join(marks)} |")
    return "\n".join([*lines, ""])


def entry(info: PluginInfo, spec: Spec) -> str:
    """One plugin: a heading, a table of facts and a table of options."""
    facts = [("summary", spec.summary), ("source", spec.reference or "–")]
    if isinstance(spec, HomogenizerSpec):
        acts = inspect.isclass(spec.factory) and [stage for stage in STAGES if spec.factory.overrides(stage)]
        facts += [
            ("stages", _code(acts) if acts else "depend on its options"),
            ("traits", _code(sorted(spec.traits))),
            ("needs", _code(sorted(spec.needs))),
        ]
        if spec.last:
            facts.append(("place", "must be the last of its pipeline"))
        if spec.max_tasks:
            facts.append(("limit", f"{spec.max_tasks} tasks"))
    if isinstance(spec, LearnerSpec):
        facts.append(("traits", _code(sorted(spec.traits))))
    if isinstance(spec, DomainSpec):
        facts.append(("variants", _code(spec.variants) if spec.variants else "any text"))
    module = info.module.replace(".", "/") + ".py"
    path = ROOTS.get(info.module.partition(".")[0], "") + module
    facts.append(("code", f"[{info.module}](../../{path})"))
    lines = [
        f"### `{info.name}`",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {_cell(value)} |" for name, value in facts),
        "",
    ]
    rows = _options(spec)
    return "\n".join([*lines, *rows, ""]) if rows else "\n".join([*lines, "No options.", ""])


def _options(spec: Spec) -> list[str]:
    accepted = options.describe(spec)
    if not accepted:
        return []
    meanings = documented(inspect.getdoc(spec.factory) or "")
    meanings = {"scale": SCALE, **meanings} if options.has_paper_scale(spec) else meanings
    rows = [("option", "values", "meaning"), ("---", "---", "---")]
    for name, described in zip(options.option_parameters(spec), accepted, strict=True):
        written, _, allowed = described.partition(" (")
        rows.append((f"`{_cell(written)}`", _cell(allowed.removesuffix(")")), _cell(meanings.get(name, "–"))))
    return [f"| {' | '.join(row if meanings else row[:2])} |" for row in rows]


def documented(docstring: str) -> Mapping[str, str]:
    """The text of the section `Args:` of a docstring for each argument, on one line.

    >>> documented("A method.\\n\\nArgs:\\n    a, b: one,\\n        or two.\\n    c: three.\\n\\nMore.")
    {'a': 'one, or two.', 'b': 'one, or two.', 'c': 'three.'}
    """
    section = re.search(r"^Args:\n((?:    .*\n?|\n(?=    ))*)", docstring, re.MULTILINE)
    found: dict[str, str] = {}
    names: list[str] = []
    for line in section[1].splitlines() if section else []:
        if start := re.fullmatch(r"    (\w+(?:, \w+)*): (.*)", line):
            names = start[1].split(", ")
            found |= dict.fromkeys(names, start[2])
        else:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
