"""Groups of parameters that are homogenized separately: layers, tensors, or glob patterns."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Literal

from gradhomog.errors import OptionError

Per = Literal["model", "layer", "tensor"] | Mapping[str, str]
"""All parameters together, the parameters of each module, each tensor, or groups by glob patterns over names."""


def group_names(names: Sequence[str], per: Per) -> dict[str, list[str]]:
    """Return the parameters' names by group, in order; every parameter is in exactly one group.

    Raises:
        OptionError: a pattern matches no parameter, a parameter matches no pattern, or `per` has an invalid value.
    """
    if isinstance(per, Mapping):
        return _by_pattern(names, per)
    if per == "model":
        return {"": list(names)}
    if per not in ("layer", "tensor"):
        raise OptionError(f"`per` must be 'model', 'layer', 'tensor' or a dict of glob patterns by group; got {per!r}.")
    groups: dict[str, list[str]] = {}
    for name in names:
        if per == "layer" and name.isdigit():
            raise OptionError(
                "per='layer' groups parameters by the names of their modules; got the names '0', '1', … of a list. Use "
                "per='tensor', or pass a module with named parameters."
            )
        # `conv.weight` and `conv.bias` are one layer; a parameter of the outermost module is a separate layer.
        groups.setdefault(name.rpartition(".")[0] or name if per == "layer" else name, []).append(name)
    return groups


def _by_pattern(names: Sequence[str], patterns: Mapping[str, str]) -> dict[str, list[str]]:
    if wrong := [entry for pair in patterns.items() for entry in pair if not isinstance(entry, str)]:
        raise OptionError(f"`per` must map names of groups to patterns, all of them strings; got {wrong[0]!r}.")
    groups: dict[str, list[str]] = {group: [] for group in patterns}
    for name in names:
        for group, pattern in patterns.items():
            if fnmatch.fnmatchcase(name, pattern):
                groups[group].append(name)
                break
        else:
            raise OptionError(
                f"`per` must have a pattern for every shared parameter; {name!r} matches none of {dict(patterns)}."
            )
    if empty := [group for group, members in groups.items() if not members]:
        raise OptionError(
            f"pattern {patterns[empty[0]]!r} of group {empty[0]!r} in `per` selects no parameter: it matches none, or "
            f"only parameters that an earlier pattern matches. Parameters: {', '.join(names[:6])}"
            f"{', …' if len(names) > 6 else ''}."
        )
    return groups
