"""Choose the tasks whose rows a step computes, before any loss is differentiated."""

from __future__ import annotations

from collections.abc import Sequence

from gradhomog.errors import OptionError
from gradhomog.step.member import Member
from gradhomog.step.task_key import TaskKey, task_keys


def keys_of(tasks: int | Sequence[str] | Sequence[TaskKey]) -> tuple[tuple[TaskKey, ...], tuple[str, ...]]:
    """Return the keys of tasks, and their names if `tasks` are names; see `Pipeline.choose`.

    Raises:
        OptionError: `tasks` has another form, or a name occurs twice.
    """
    if isinstance(tasks, int) and not isinstance(tasks, bool) and tasks > 0:
        return task_keys(range(tasks)), ()
    entries = tuple(tasks) if isinstance(tasks, Sequence) and not isinstance(tasks, str) else ()
    keys = tuple(entry for entry in entries if isinstance(entry, TaskKey))
    names = tuple(entry for entry in entries if isinstance(entry, str))
    if keys and len(keys) == len(entries):
        return keys, ()
    if not names or len(names) < len(entries):
        raise OptionError(f"`tasks` must be the number of tasks or their names; got {tasks!r}.")
    if len(set(names)) < len(names):
        raise OptionError(f"`tasks` must be different names; got {list(names)}. Pass the number of tasks instead.")
    return task_keys(range(len(names)), names), names


def choose(choosing: Sequence[Member], keys: Sequence[TaskKey]) -> list[int]:
    """Return the positions of the chosen tasks, in ascending order; all of them if no member chooses."""
    positions = list(range(len(keys)))
    for member in choosing:
        positions = [positions[index] for index in member.choose([keys[position] for position in positions])]
    return positions
