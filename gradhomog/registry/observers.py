"""The observers of a run, each with its author: one that fails is reported once and dropped."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gradhomog.blame import describe_error
from gradhomog.hooks import Observer

Report = Callable[[str], None]
"""Called with one message for each observer that is dropped."""


@dataclass(frozen=True)
class Author:
    """The author of a hook: plugin, distribution and version, and advice for a fault."""

    name: str
    advice: str

    def __str__(self) -> str:
        return self.name


class Observers:
    """Called as `observers(event, record)`: hands each of them a copy of its own, and never raises.

    Args:
        found: the observers, each after its author.
        report: called with a message for each observer that is dropped.
    """

    def __init__(self, found: Iterable[tuple[Author, Observer]], report: Report) -> None:
        self._observers = list(found)
        self._report = report

    def __len__(self) -> int:
        return len(self._observers)

    def __call__(self, event: str, record: Mapping[str, Any]) -> None:
        for entry in list(self._observers):
            author, observer = entry
            try:
                observer(event, copy.deepcopy(record))
            except (Exception, SystemExit) as cause:
                self._observers.remove(entry)
                self._report(
                    f"the observer of {author} raised at `{event}`: {describe_error(cause)}. The run goes on "
                    f"without it. {author.advice}"
                )


def collect(hooks: Iterable[tuple[Author, Callable[[], Any]]], report: Report) -> Observers:
    """Ask each author's hook `gradhomog_observers`; one that raises or returns no observer is reported and left out."""
    found: list[tuple[Author, Observer]] = []
    for author, hook in hooks:
        try:
            observer = hook()
        except (Exception, SystemExit) as cause:
            report(
                f"{author} raised in `gradhomog_observers`: {describe_error(cause)}. The run goes on "
                f"without its observer. {author.advice}"
            )
            continue
        if observer is not None and not callable(observer):
            report(
                f"{author} must return from `gradhomog_observers` a function or None; got {type(observer).__name__}. "
                f"The run goes on without its observer. {author.advice}"
            )
        elif observer is not None:
            found.append((author, observer))
    return Observers(found, report)
