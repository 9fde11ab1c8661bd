"""Pages of the public Python names: one per name by autodoc, and their list by purpose."""

import inspect
from typing import Any

import gradhomog
from _site.plugin_tables import table_head, table_row

HEAD = """\
# Python names

The public names of `gradhomog`; `help(gradhomog.NAME)` prints the same. Other names are internal and may change.
Exceptions are on the page of [errors](errors.md).
"""
GROUPS = {
    "Functions": lambda found: inspect.isfunction(found),
    "Classes": lambda found: inspect.isclass(found) and not issubclass(found, Exception),
    "Modules": inspect.ismodule,
}


def pages() -> dict[str, str]:
    """The list of names with their first sentences, and a page for each."""
    names = {name: getattr(gradhomog, name) for name in sorted(gradhomog.__all__)}
    lines, written = [HEAD], {}
    for title, belongs in GROUPS.items():
        members = {name: found for name, found in names.items() if belongs(found)}
        lines += [f"## {title}", "", *table_head("name", "description")]
        for name, found in members.items():
            summary = (inspect.getdoc(found) or "").partition("\n")[0]
            lines.append(table_row(f"[`{name}`](python/{name}.md)", summary))
            written[f"reference/python/{name}.md"] = _page(name, found)
        lines.append("")
    return {"reference/python.md": "\n".join(lines), **written}


def _page(name: str, found: Any) -> str:
    kind = "function" if inspect.isfunction(found) else "class" if inspect.isclass(found) else "module"
    # Orphans are not in the navigation, whose tree is computed for every page.
    head = f"---\norphan: true\n---\n\n# `{name}`\n\n[Python names](../python.md)\n\n"
    return f"{head}```{{eval-rst}}\n.. auto{kind}:: gradhomog.{name}\n```\n"
