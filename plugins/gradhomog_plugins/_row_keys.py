"""Keys of rows that are kept from step to step, and the slots by which another method identifies them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from gradhomog import OptionError, TaskKey


def row_keys(tasks: Sequence[TaskKey], key: Literal["domain", "slot"], domains: Mapping[str, str]) -> list[str]:
    """Return the key of each task's row: its domain, or its slot where tasks have no domains.

    `domains`: the domain of each row that is kept; empty strings if the tasks had none.

    Raises:
        OptionError: a kept row with the key of a task is of another task.
    """
    return [_slot(task, domains) if key == "slot" else _domain(task, domains) for task in tasks]


def free_slot(slot: int, taken: Collection[int]) -> int:
    """Return `slot`, or the lowest number that is not taken."""
    return slot if slot not in taken else next(number for number in itertools.count() if number not in taken)


def _slot(task: TaskKey, domains: Mapping[str, str]) -> str:
    before = domains.get(str(task.slot), "")
    if before and task.domain and before != task.domain:
        raise OptionError(
            f"tracked: slot {task.slot} had the domain {before!r} in an earlier step; got {task.domain!r}. Use "
            "key='domain', or pass None for absent tasks."
        )
    return str(task.slot)


def _domain(task: TaskKey, domains: Mapping[str, str]) -> str:
    if not domains or any(domains.values()) == bool(task.domain):
        return task.domain or str(task.slot)
    names = ", ".join(filter(None, domains.values()))
    raise OptionError(
        f"tracked: tasks had {f'the names {names}' if names else 'no names'} in earlier steps; got "
        f"{repr(task.domain) if task.domain else f'slot {task.slot} without a name'}. Pass names in every step, to "
        "`Pipeline.choose` and with the losses, or never."
    )
