"""The facts about a published few-shot benchmark: folders, archives and split rule, and the table of nine of them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from gradhomog import Benchmark

Rule = Literal["folders", "modulo", "novel"]

RULES: dict[Rule, str] = {
    "folders": "by the folders train, val and test",
    "modulo": "class i: base if i % 2 = 0, val if i % 4 = 1, novel if i % 4 = 3",
    "novel": "all classes novel",
}
"""Split rules, with classes numbered from 0 in the order of the benchmark."""


@dataclass(frozen=True, kw_only=True)
class Published(Benchmark):
    """The facts about a benchmark whose images lie in published folders.

    Attributes:
        folders: where the pictures lie, relative to the data root or to a folder named after the benchmark.
        own_folders: further places, only below a folder named after the benchmark.
        archives: names of the archives, to find one that is not unpacked.
        rule: split rule of the classes.
        class_names: published names of the classes, if there are few; empty otherwise.
    """

    folders: tuple[str, ...]
    rule: Rule
    own_folders: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    @property
    def split_rule(self) -> str:
        return RULES[self.rule]

    @property
    def splits(self) -> dict[str, int]:
        if self.rule == "folders":
            return {"base": 64, "val": 16, "novel": 20}
        if self.rule == "novel":
            return {"base": 0, "val": 0, "novel": self.classes}
        numbers = range(self.classes)
        return {"base": len(numbers[::2]), "val": len(numbers[1::4]), "novel": len(numbers[3::4])}


def split_of(rule: Rule, index: int) -> str:
    """Return the split of the class of this number, for rules that depend on the number alone.

    >>> [split_of("modulo", index) for index in range(5)]
    ['base', 'val', 'base', 'novel', 'base']
    """
    if rule == "novel":
        return "novel"
    return "base" if index % 2 == 0 else "val" if index % 4 == 1 else "novel"


def read_facts() -> dict[str, dict[str, Any]]:
    """Return the attributes of each benchmark by its name."""
    tables = tomllib.loads((files("gradhomog_data.benchmarks") / "benchmarks.toml").read_text(encoding="utf-8"))
    for name, table in tables.items():
        table |= {"name": name} | {key: tuple(value) for key, value in table.items() if isinstance(value, list)}
    return tables
