"""The pages of the built-in learners, domains and observers: summary, options and documentation of each."""

import inspect
import textwrap

from _site import docstrings, plugin_tables
from _site.plugin_tables import code
from gradhomog.registry import Kind
from gradhomog.registry.specs import DomainSpec, LearnerSpec

HEADS: dict[Kind, str] = {
    "learners": "The [guide](../guide/learners.md) describes what learners have in common.",
    "domains": "The [guide](../guide/domains.md) describes files, splits and your own data.",
    "problems": "The [guide](../guide/multitask.md) describes run files with a problem, and your own problem.",
    "observers": "An observer receives the records of runs: see [the hook](../guide/hooks/gradhomog_observer.md).",
}


def pages() -> dict[str, str]:
    """One page for each kind of plugin but homogenizers, which have one page each."""
    return {f"reference/{kind}.md": _page(kind, head) for kind, head in HEADS.items()}


def _page(kind: Kind, head: str) -> str:
    lines = [f"# Built-in {kind}", "", f"`gradhomog show NAME` prints the same. {head}", ""]
    for info, spec in plugin_tables.built_in(kind):
        lines += [f"({kind[:-1]}-{info.name})=", f"## `{info.name}`", ""]
        summary = docstrings.capitalized(spec.summary)
        lines += [f"{plugin_tables.title(info)}: {spec.summary}." if kind == "learners" else f"{summary}."]
        lines += ["", f"Source: {spec.reference}.", ""] if spec.reference else [""]
        if isinstance(spec, LearnerSpec) and spec.traits:
            lines += [f"Traits: {code(sorted(spec.traits))}.", ""]
        if isinstance(spec, DomainSpec) and spec.variants:
            lines += [f"Variants: {code(spec.variants)}.", ""]
        lines += plugin_tables.option_table(spec)
        lines += _documentation(inspect.getdoc(spec.factory) or "")
    return "\n".join(lines)


def _documentation(docstring: str) -> list[str]:
    lines: list[str] = []
    for block in docstrings.paragraphs(docstring):
        if block.kind == "formula":
            lines += ["```text", textwrap.dedent(block.text), "```", ""]
        elif block.kind == "example":
            lines += ["```pycon", block.text, "```", ""]
        elif block.kind == "Raises:":
            lines += ["Raises:", "", *(f"- {line.strip()}" for line in _items(block.text)), ""]
        elif block.kind not in docstrings.SECTIONS:  # arguments are in the table of options
            lines += [block.text, ""]
    return lines


def _items(section: str) -> list[str]:
    items: list[str] = []
    for line in section.splitlines()[1:]:
        if line.startswith("     ") and items:
            items[-1] += " " + line.strip()
        else:
            items.append(line)
    return items
