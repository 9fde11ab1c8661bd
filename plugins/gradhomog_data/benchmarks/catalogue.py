"""The facts about a published few-shot benchmark: folders, archives and split rule."""

from dataclasses import dataclass
from typing import Literal

from gradhomog import Benchmark

Rule = Literal["folders", "modulo", "novel"]

RULES: dict[Rule, str] = {
    "folders": "by the folders train, val and test",
    "modulo": "class i: base if i % 2 = 0, val if i % 4 = 1, novel if i % 4 = 3",
    "novel": "all classes novel",
}
"""Split rules, with classes numbered from 0 in the order of the benchmark."""


def split_of(rule: Rule, index: int) -> str:
    """Return the split of the class of this number, for rules that depend on the number alone.

    >>> [split_of("modulo", index) for index in range(5)]
    ['base', 'val', 'base', 'novel', 'base']
    """
    if rule == "novel":
        return "novel"
    return "base" if index % 2 == 0 else "val" if index % 4 == 1 else "novel"


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
        found = [split_of(self.rule, index) for index in range(self.classes)]
        return {split: found.count(split) for split in ("base", "val", "novel")}
