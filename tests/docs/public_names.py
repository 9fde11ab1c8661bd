"""The page `docs/reference/python.md`: every name of `gradhomog`, with its signature and what its docstring says."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

import gradhomog
from tests.docs import signatures

HEAD = """\
# Names of `gradhomog`

All that can be imported from `gradhomog`, as `help(gradhomog.NAME)` shows it. What is not here is the library's own
affair and may change. The stages of a homogenizer, and what it sees of a step, are told with their reasons in
[gradhomog_homogenizer](../guide/hooks/gradhomog_homogenizer.md), those of learners and domains in
[gradhomog_learner](../guide/hooks/gradhomog_learner.md) and [gradhomog_domain](../guide/hooks/gradhomog_domain.md);
the conformance kit, `gradhomog.testing`, in [check](../guide/check.md).
"""

GROUPS = {
    "Functions": lambda found: inspect.isfunction(found),
    "Classes": lambda found: inspect.isclass(found) and not issubclass(found, Exception),
    "Errors": lambda found: inspect.isclass(found) and issubclass(found, Exception),
}


def page(text: str = "") -> str:
    """The whole page; what it was before does not matter."""
    names = {name: getattr(gradhomog, name) for name in sorted(gradhomog.__all__)}
    parts = [HEAD]
    for title, belongs in GROUPS.items():
        entries = [_entry(name, found) for name, found in names.items() if belongs(found)]
        parts.append(f"## {title}\n\n" + "\n".join(entries))
    others = [name for name, found in names.items() if not any(belongs(found) for belongs in GROUPS.values())]
    listed = ", ".join(f"`{name}`" for name in others)
    parts.append(f"## Others\n\n{listed}: see the functions that take them.\n")
    return "\n".join(parts)


def _entry(name: str, found: Any) -> str:
    head = signatures.signature(found, name) if inspect.isfunction(found) else name
    members = vars(found).items() if inspect.isclass(found) else ()
    methods = [
        f"{signatures.signature(member) if inspect.isfunction(member) else label}\n"
        f"{_indented(inspect.cleandoc(member.__doc__))}"
        for label, member in members
        if isinstance(member, (FunctionType, property)) and not label.startswith("_") and member.__doc__
    ]
    told = "\n\n".join([inspect.cleandoc(found.__doc__ or ""), *methods])
    return f"### `{name}`\n\n```text\n{head}\n\n{told}\n```\n"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())
