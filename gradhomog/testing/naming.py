"""What is checked, as a caller names it and as a report calls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradhomog import expression
from gradhomog.errors import OptionError
from gradhomog.registry import Kind, PluginInfo


def name_and_options(kind: Kind, what: object) -> tuple[str, dict[str, Any]]:
    """A plugin's name and options, written as one text or given as a pair.

    Raises:
        OptionError, ExpressionError: it is neither.
    """
    if isinstance(what, str):
        return expression.parse_one(what)
    if isinstance(what, tuple) and len(what) == 2 and isinstance(what[0], str) and isinstance(what[1], Mapping):
        return what[0], dict(what[1])
    raise OptionError(
        f"what is checked is a name, a pair (name, options) or a {kind[:-1].capitalize()}Spec; got {what!r}."
    )


def described(kind: Kind, name: str, options: Mapping[str, Any], info: PluginInfo | None) -> str:
    """The plugin with its options, its distribution and its version."""
    text = f"{kind[:-1]} {expression.render_one(name, options)}"
    return text if info is None else f"{text} of {info.distribution} {info.version} ({info.module})"
