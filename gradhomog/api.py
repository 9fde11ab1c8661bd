"""Making things by name: pipelines, learners, domains."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradhomog import expression
from gradhomog.errors import OptionError, PluginRunError
from gradhomog.registry import Kind, Registry, installed

if TYPE_CHECKING:
    from torch import nn

    from gradhomog.domains import Domain
    from gradhomog.engine.finite import Nonfinite
    from gradhomog.engine.member import Member
    from gradhomog.homogenizer import Homogenizer
    from gradhomog.learners import Learner
    from gradhomog.pipelines import Pipeline

    Entry = str | tuple[str, Mapping[str, Any]] | Homogenizer


def available(kind: Kind = "homogenizers") -> tuple[str, ...]:
    """Names of the installed plugins of a kind (`"homogenizers"`, `"learners"`, `"domains"`); imports none of them.

    >>> "pcgrad" in available()
    True
    """
    return installed().names(kind)


def pipeline(
    what: str | Pipeline | Sequence[Entry] | None = None,
    *,
    nonfinite: Nonfinite | None = None,
    registry: Registry | None = None,
) -> Pipeline:
    """Homogenizers by name, with options, in order.

    A preset, whose factory returns entries instead of a homogenizer, is spliced in place.

    Args:
        what: text such as `"isi + reweight(beta=1.5)"`; or a list of names, `(name, options)` and `Homogenizer`
            objects; `"none"`, `""`, `[]` or None for the empty pipeline, which is the plain learner. A Pipeline is
            returned as is.
        nonfinite: see `Pipeline`; `"raise"` by default. A Pipeline that is returned as is keeps its own.
        registry: where names are looked up; by default among the installed distributions.

    Raises:
        ExpressionError, UnknownPluginError, AmbiguousPluginError, DisabledPluginError, PluginLoadError, OptionError.

    >>> pipeline("static(weights=[1, 3]) + pcgrad")
    Pipeline('static(weights=[1, 3]) + pcgrad', nonfinite='raise')
    """
    from gradhomog.engine.member import Member
    from gradhomog.homogenizer import Homogenizer
    from gradhomog.pipelines import Pipeline

    if isinstance(what, Pipeline):
        if nonfinite not in (None, what.nonfinite):
            raise OptionError(
                f"`nonfinite` is {what.nonfinite!r} in the pipeline given; it cannot be {nonfinite!r} too."
            )
        return what
    if not isinstance(what, (str, Sequence, type(None))):
        raise OptionError(f"a pipeline is a text or a list of names and Homogenizer objects; got {what!r}.")
    entries: Sequence[Entry] = [*expression.parse(what)] if isinstance(what, str) else list(what or [])
    members: list[Member] = []
    named: list[tuple[str, dict[str, Any]]] = []  # as the user wrote it
    for entry in entries:
        if isinstance(entry, Homogenizer):
            members.append(Member(entry, type(entry).__name__, {}))
            named.append((type(entry).__name__, {}))
            continue
        if isinstance(entry, str):
            found = expression.parse(entry)
            if not found and len(entries) > 1:
                raise OptionError(f"'none' is the empty pipeline and cannot be combined; got {entries!r}.")
        elif (
            isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str) and isinstance(entry[1], Mapping)
        ):
            found = [(entry[0], dict(entry[1]))]
        else:
            raise OptionError(f"a pipeline is made of names, (name, options) and Homogenizer objects; got {entry!r}.")
        for selector, options in found:
            members += _members(registry or installed(), selector, options)
            named.append((selector, options))
    return Pipeline(members, nonfinite or "raise", expression.render(named))


def _members(registry: Registry, selector: str, options: Mapping[str, Any]) -> list[Member]:
    from gradhomog.engine.member import Member
    from gradhomog.homogenizer import Homogenizer
    from gradhomog.specs import HomogenizerSpec

    info, spec, made = registry.make("homogenizers", selector, options)
    if isinstance(made, Sequence) and not isinstance(made, str):
        return list(pipeline(made, registry=registry).members)
    if not isinstance(made, Homogenizer):
        raise PluginRunError(
            f"{info} must make a gradhomog.Homogenizer; its factory returned {type(made).__name__}. {info.advice}"
        )
    assert isinstance(spec, HomogenizerSpec)
    return [Member(made, selector, dict(options), info, spec)]


def learner(
    name: str,
    encoder: nn.Module,
    head: nn.Module,
    *,
    homogenizers: str | Pipeline | Sequence[Entry] | None = None,
    registry: Registry | None = None,
    **options: Any,
) -> Learner:
    """A learner by name: `learner("maml", encoder, head, homogenizers="pcgrad", inner_steps=5)`.

    `name` may carry options too, as in a run file: `"maml(first_order=true)"`; keywords win.
    """
    from gradhomog.learners import Learner

    selector, written = expression.parse_one(name)
    pipe = pipeline(homogenizers, registry=registry)
    info, _, made = (registry or installed()).make(
        "learners", selector, {**written, **options}, encoder, head, homogenizers=pipe
    )
    if not isinstance(made, Learner):
        raise PluginRunError(
            f"{info} must make a gradhomog.Learner; its factory returned {type(made).__name__}. {info.advice}"
        )
    return made


def domain(text: str, *, size: int = 28, registry: Registry | None = None) -> Domain:
    """A domain by name: `domain("glyphs:greek(background=0.3)", size=28)`, or by path: `domain("images/birds.npz")`.

    `distribution:name` chooses between plugins of one name, and a further colon gives the variant. A text that ends in
    `.npz` or `.json`, or holds a path separator, is a file or folder for the domain plugin `images`.

    Raises:
        UnknownPluginError, OptionError, DataError.
    """
    from gradhomog.domains import Domain

    registry = registry or installed()
    selector, variant, options = _split_domain(text, registry)
    info, _, made = registry.make("domains", selector, options, variant, size=size)
    if not isinstance(made, Domain):
        raise PluginRunError(
            f"{info} must make a gradhomog.Domain; its factory returned {type(made).__name__}. {info.advice}"
        )
    return made


def domain_plugin(text: str) -> str:
    """The plugin that a domain's text names, as `Registry.find` takes it."""
    return _split_domain(text, installed())[0]


def domain_identity(text: str) -> str:
    """What a domain's text means, whatever its options: two texts of one identity share their classes."""
    plugin, variant, _ = _split_domain(text, installed())
    return f"{plugin}:{os.path.realpath(variant) if plugin.endswith('images') else variant}"


def _split_domain(text: str, registry: Registry) -> tuple[str, str, dict[str, Any]]:
    path, bracket, inside = text.partition("(")
    plugins = {info.name for info in registry.list("domains")}
    if path.endswith((".npz", ".json")) or "/" in path or "\\" in path or (path not in plugins and os.path.isdir(path)):
        plugin, colon, rest = path.partition(":")
        known = colon and plugin in registry.names("domains")
        options = expression.parse_one("images" + bracket + inside)[1]
        return (plugin, rest, options) if known else ("images", path, options)
    selector, options = expression.parse_one(text)
    parts = selector.split(":")
    selectors = {info.selector for info in registry.list("domains")}
    if len(parts) > 1 and ":".join(parts[:2]) in selectors:
        return ":".join(parts[:2]), ":".join(parts[2:]), options
    return parts[0], ":".join(parts[1:]), options
