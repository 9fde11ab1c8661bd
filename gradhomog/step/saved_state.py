"""Save and load the states of members and groups of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradhomog.errors import ConfigError
from gradhomog.step.member import Member

PART = "part "
"""Prefix of the name of a group of parameters."""


def save(members: Sequence[Member]) -> dict[str, Any]:
    """Return the state of each member by its index and selector."""
    return {name: member.state_dict() for name, member in zip(_names(members), members, strict=True)}


def load(members: Sequence[Member], state: Mapping[str, Any]) -> None:
    """Load the state of each member."""
    for name, member in zip(_names(members), members, strict=True):
        member.load_state_dict(state[name])


def validate_and_list_parts(members: Sequence[Member], state: Mapping[str, Any]) -> list[str]:
    """Validate the names in the state of a pipeline, and return those of its groups of parameters.

    Raises:
        ConfigError: the state was saved by another pipeline.
    """
    names = ["steps", "named", *_names(members)]
    parts = [name for name in state if name.startswith(PART)]
    if set(state) != {*names, *parts} or type(state["steps"]) is not int or not isinstance(state["named"], bool | None):
        raise ConfigError(f"the saved state must be of the same pipeline, with the keys {names}; got {list(state)}.")
    return [name.removeprefix(PART) for name in parts]


def _names(members: Sequence[Member]) -> list[str]:
    return [f"{index}:{member.selector}" for index, member in enumerate(members)]
