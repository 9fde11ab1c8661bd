"""Create the members of a pipeline from names, options and objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradhomog.errors import OptionError, PluginRunError
from gradhomog.registry import Registry, expression
from gradhomog.registry.specs import HomogenizerSpec
from gradhomog.step.homogenizer import Homogenizer
from gradhomog.step.member import Member

Entry = str | tuple[str, Mapping[str, Any]] | Homogenizer
"""One entry of a pipeline: a name (or a text with several), a name with options, or an object."""


def assemble(homogenizers: str | Sequence[Entry] | None, registry: Registry) -> tuple[list[Member], str]:
    """Return the members in order, and the pipeline's text as the user wrote it; a preset is expanded in place.

    Raises:
        ExpressionError, UnknownPluginError, AmbiguousPluginError, DisabledPluginError, PluginLoadError, OptionError.
    """
    if not isinstance(homogenizers, str | Sequence | None):
        raise OptionError(
            f"a pipeline must be a text or a list of names and Homogenizer objects; got {homogenizers!r}."
        )
    entries = expression.parse(homogenizers) if isinstance(homogenizers, str) else homogenizers or []
    members: list[Member] = []
    named: list[tuple[str, dict[str, Any]]] = []
    for entry in entries:
        if isinstance(entry, Homogenizer):
            members.append(Member(entry, type(entry).__name__, {}))
            named.append((type(entry).__name__, {}))
            continue
        for selector, options in _named_entries(entry, entries):
            members += _make_members(registry, selector, options)
            named.append((selector, options))
    return members, expression.render(named)


def _named_entries(entry: Any, entries: Sequence[Entry]) -> Sequence[tuple[str, dict[str, Any]]]:
    if isinstance(entry, str):
        found = expression.parse(entry)
        if not found and len(entries) > 1:
            raise OptionError(f"'none' is the empty pipeline and cannot be combined with others; got {entries!r}.")
        return found
    if isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str) and isinstance(entry[1], Mapping):
        return [(entry[0], dict(entry[1]))]
    raise OptionError(f"an entry of a pipeline must be a name, (name, options) or a Homogenizer object; got {entry!r}.")


def _make_members(registry: Registry, selector: str, options: Mapping[str, Any]) -> list[Member]:
    info, spec, made = registry.make("homogenizers", selector, options)
    if isinstance(made, Sequence) and not isinstance(made, str):
        return assemble(made, registry)[0]
    if not isinstance(made, Homogenizer):
        raise PluginRunError(
            f"the factory of {info} must return a gradhomog.Homogenizer; got {type(made).__name__}. {info.advice}"
        )
    assert isinstance(spec, HomogenizerSpec)
    paper = made.overrides("paper_scale") and options.get("scale") == "paper"
    return [Member(made, selector, dict(options), info, spec, "paper" if paper else "mean")]
