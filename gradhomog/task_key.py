"""Task keys: a task's slot and domain, which identify its state between steps."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradhomog.errors import OptionError


@dataclass(frozen=True)
class TaskKey:
    """The position of a task in its batch, and the name of its domain."""

    slot: int
    domain: str = ""

    def by(self, key: str) -> str:
        """Return the key of the task's state: the slot's number for `"slot"`, the domain's name for `"domain"`."""
        if key == "slot":
            return str(self.slot)
        if not self.domain:
            raise OptionError(
                f"state by domain requires the domain of every task; the task in slot {self.slot} has none. "
                "Pass domains=[...] with the tasks, or use key='slot'."
            )
        return self.domain


@functools.lru_cache(maxsize=256)
def task_keys(tasks: int, domains: tuple[str, ...] = ()) -> tuple[TaskKey, ...]:
    """Return the keys of a batch; without `domains` they have slots only."""
    return slot_keys(range(tasks), domains)


def slot_keys(slots: Iterable[int], domains: Sequence[str] | None) -> tuple[TaskKey, ...]:
    """Return the keys of tasks in these slots; `domains` has one name per slot, in the same order, or none."""
    return tuple(TaskKey(slot, domains[index] if domains else "") for index, slot in enumerate(slots))


def check_domains(domains: Sequence[str] | None, tasks: int) -> tuple[str, ...]:
    """Return the domains as a tuple; empty if there are none.

    Raises:
        OptionError: the number of domains differs from the number of tasks.
    """
    if domains and len(domains) != tasks:
        raise OptionError(f"`domains` must contain one name for each of the {tasks} tasks; got {list(domains)}.")
    return tuple(domains or ())
