"""Published few-shot benchmarks: their facts, read without torch and numpy. Nothing is downloaded.

The module `folders` finds and lists them on the user's disk, `files_check` checks their files.
"""

import tomllib
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

from gradhomog import ConfigError, did_you_mean

SPLITS = ("base", "val", "novel")
"""Names of training, validation and test classes in published file lists."""

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


@dataclass
class BenchmarkCheck:
    """The result of checking one benchmark.

    Attributes:
        status: `"missing"`, `"damaged"` if there are problems, `"other data"` if there are more classes or images than
            published or another class name, `"incomplete"` for any other difference, else `"complete"`.
        form: the form in which the images are stored.
        splits: numbers of classes and images of base, val and novel.
        sha256: digest of splits, classes and relative paths; of an array file, of the whole file.
        problems: files that are damaged or missing.
        differences: numbers and names of classes and images that differ from the published ones, as in subsets: results
            on these files are not comparable to published ones.
        advice: what to do next, if anything.
    """

    benchmark: str
    status: Literal["missing", "damaged", "other data", "incomplete", "complete"] = "missing"
    path: str = ""
    form: str | None = None
    classes: int = 0
    published_classes: int = 0
    images: int = 0
    published_images: int | None = None
    splits: dict[str, dict[str, int]] = field(default_factory=dict)
    sha256: str = ""
    problems: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A published benchmark of images.

    Attributes:
        name: name in commands, file names and folder names.
        title: name in publications.
        source: place where the data are obtained.
        terms: terms of use, as their publishers state them.
        layout: files below the data root after unpacking, for humans.
        classes: number of classes.
        folders: where the pictures lie, relative to the data root or to a folder named after the benchmark.
        rule: split rule of the classes.
        images: number of images; None if no number is published.
        order: order of the classes, from which the split rule counts.
        own_folders: further places, only below a folder named after the benchmark.
        archives: names of the archives, to find one that is not unpacked.
        class_names: published names of the classes, if there are few; empty otherwise.
    """

    name: str
    title: str
    source: str
    terms: str
    layout: str
    classes: int
    folders: tuple[str, ...]
    rule: Rule
    images: int | None = None
    order: str = "class folders by name"
    own_folders: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    @property
    def split_rule(self) -> str:
        """The rule that divides the classes into base, val and novel, in words."""
        return RULES[self.rule]

    @property
    def splits(self) -> dict[str, int]:
        """Published number of classes of base, val and novel."""
        if self.rule == "folders":
            return {"base": 64, "val": 16, "novel": 20}
        found = [split_of(self.rule, index) for index in range(self.classes)]
        return {split: found.count(split) for split in SPLITS}


MULTI_TASK: dict[str, dict[str, str]] = tomllib.loads((files(__name__) / "multitask.toml").read_text(encoding="utf-8"))
"""Title, contents, source, terms and layout of the data of multi-task benchmarks, by the name of the experiment."""


def _read(name: str, facts: dict[str, Any]) -> Benchmark:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}
    return Benchmark(name=name, **fields)


BENCHMARKS = {
    name: _read(name, facts)
    for name, facts in sorted(tomllib.loads((files(__name__) / "benchmarks.toml").read_text(encoding="utf-8")).items())
}
"""The benchmarks by name, sorted."""


def find_benchmark(name: str) -> Benchmark:
    """Return the benchmark of a name.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in BENCHMARKS:
        hint = did_you_mean(name, BENCHMARKS)
        raise ConfigError(f"unknown benchmark {name!r}.{hint} The benchmarks are {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]
