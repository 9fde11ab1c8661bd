"""Task keys: a task's name and position, which identify its state between steps."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from gradhomog.errors import OptionError


@dataclass(frozen=True)
class TaskKey:
    """The position of a task in its batch, and its name: the key of its loss in a dict, or the name of its domain."""

    slot: int
    domain: str = ""

    def by(self, key: str = "domain") -> str:
        """Return the key of the task's state: its name, or its position for `"slot"` and if it has no name."""
        return self.domain if self.domain and key == "domain" else str(self.slot)


@functools.lru_cache(maxsize=256)
def task_keys(slots: Sequence[int], domains: tuple[str, ...] = ()) -> tuple[TaskKey, ...]:
    """Return the keys of tasks in these slots, a tuple or range; `domains` has one name per slot, or none.

    Raises:
        OptionError: the number of names differs from the number of tasks; some tasks have a name and others have none;
            a name is not a string.
    """
    if domains and len(domains) != len(slots):
        raise OptionError(f"`domains` must contain one name for each of the {len(slots)} tasks; got {list(domains)}.")
    if any(not isinstance(name, str) or bool(name) != bool(domains[0]) for name in domains):
        raise OptionError(
            "all tasks of a batch must have names, non-empty strings, or none may have one, because the state of a "
            f"task is kept under its name; got {list(domains)}."
        )
    return tuple(map(TaskKey, slots, domains or ("",) * len(slots)))
