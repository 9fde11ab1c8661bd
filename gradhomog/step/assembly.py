"""Create the members of a pipeline from names, options and objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradhomog.errors import OptionError
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
    entries: Sequence[Any] = expression.parse(homogenizers) if isinstance(homogenizers, str) else homogenizers or ()
    members: list[Member] = []
    texts: list[str] = []
    for entry in entries:
        if isinstance(entry, Homogenizer):
            found, text = [Member(entry, type(entry).__name__, {})], type(entry).__name__
        elif isinstance(entry, str):
            found, text = assemble(entry, registry)
            if text == "none" and len(entries) > 1:
                raise OptionError(f"'none' is the empty pipeline and cannot be combined with others; got {entries!r}.")
        elif isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], Mapping):
            found, text = _make_members(registry, *entry), expression.render_one(*entry)
        else:
            raise OptionError(
                f"an entry of a pipeline must be a name, (name, options) or a Homogenizer object; got {entry!r}."
            )
        members += found
        texts.append(text)
    return members, " + ".join(texts) or "none"


def _make_members(registry: Registry, selector: str, options: Mapping[str, Any]) -> list[Member]:
    info, spec, made = registry.make("homogenizers", selector, options)
    if isinstance(made, Sequence) and not isinstance(made, str):
        return assemble(made, registry)[0]
    assert isinstance(spec, HomogenizerSpec)
    return [Member(info.checked(made, Homogenizer), selector, dict(options), info, spec)]
