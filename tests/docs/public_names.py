"""Generator of `docs/reference/python.md`: every public name of `gradhomog` with signature and docstring."""

from __future__ import annotations

import inspect
from functools import cached_property
from types import FunctionType
from typing import Any

import gradhomog
from tests.docs import signatures

HEAD = """\
# Names of `gradhomog`

The public names of `gradhomog`, as `help(gradhomog.NAME)` prints them. Other names are internal and may change.
[gradhomog_homogenizer](../guide/hooks/gradhomog_homogenizer.md) describes the stages of a homogenizer and its `Step`,
[gradhomog_learner](../guide/hooks/gradhomog_learner.md) and [gradhomog_domain](../guide/hooks/gradhomog_domain.md)
learners and domains, [check](../guide/check.md) the conformance kit `gradhomog.testing`.
"""

GROUPS = {
    "Functions": lambda found: inspect.isfunction(found),
    "Classes": lambda found: inspect.isclass(found) and not issubclass(found, Exception),
    "Errors and warnings": lambda found: inspect.isclass(found) and issubclass(found, Exception),
    "Modules": inspect.ismodule,
}


def page(text: str = "") -> str:
    """The whole page, independent of its previous text."""
    names = {name: getattr(gradhomog, name) for name in sorted(gradhomog.__all__)}
    parts = [HEAD]
    for title, belongs in GROUPS.items():
        entries = [_entry(name, found) for name, found in names.items() if belongs(found)]
        parts.append(f"## {title}\n\n" + "\n".join(entries))
    others = [name for name, found in names.items() if not any(belongs(found) for belongs in GROUPS.values())]
    listed = ", ".join(f"`{name}`" for name in others)
    parts.append(f"## Others\n\n{listed}: see [the hooks](../guide/hooks/).\n")
    return "\n".join(parts)


def _entry(name: str, found: Any) -> str:
    head = signatures.signature(found, name) if inspect.isfunction(found) else name
    members = vars(found).items() if inspect.isclass(found) or inspect.ismodule(found) else ()
    methods = [
        f"{signatures.signature(member) if inspect.isfunction(member) else label}\n"
        f"{_indented(inspect.cleandoc(member.__doc__))}"
        for label, member in members
        if isinstance(member, (FunctionType, property, cached_property))
        and not label.startswith("_")
        and member.__doc__
    ]
    documentation = "\n\n".join([inspect.cleandoc(found.__doc__ or ""), *methods])
    return f"### `{name}`\n\n```text\n{head}\n\n{documentation}\n```\n"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())
