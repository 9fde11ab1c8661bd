"""The contract of benchmarks: published data sets of images on the user's disk, checked by `gradhomog data`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gradhomog.registry import installed


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
class Benchmark(ABC):
    """A published benchmark of images; nothing is downloaded.

    Attributes:
        name: name in commands, file names and folder names.
        title: name in publications.
        source: place where the data are obtained.
        terms: terms of use, as their publishers state them.
        layout: files below the data root after unpacking, for humans.
        classes: number of classes.
        images: number of images; None if no number is published.
        order: order of the classes, from which the split rule counts.
    """

    name: str
    title: str
    source: str
    terms: str
    layout: str
    classes: int
    images: int | None = None
    order: str = "class folders by name"

    @property
    @abstractmethod
    def split_rule(self) -> str:
        """The rule that divides the classes into base, val and novel, in words."""

    @property
    @abstractmethod
    def splits(self) -> Mapping[str, int]:
        """Published number of classes of base, val and novel."""

    @abstractmethod
    def find(self, root: Path, size: int) -> Path | None:
        """Return the path below a data root that the domain `images` reads at this size; None if there is none.

        Raises:
            DataError: the data must be prepared first; the message contains the command.
        """

    @abstractmethod
    def check(self, root: Path, *, full: bool = False) -> BenchmarkCheck:
        """Check the files below a data root; `full` decodes every image."""

    @abstractmethod
    def count(self, path: Path) -> BenchmarkCheck:
        """Compare the classes and the number of images of a file or folder with the published ones.

        Raises:
            DataError: the file or folder cannot be used.
        """

    @abstractmethod
    def has_source(self, root: Path) -> bool:
        """True if `lists` finds pictures below a data root."""

    @abstractmethod
    def lists(self, root: Path, folder: Path) -> tuple[dict[str, Any], dict[str, bytes | None]]:
        """Return a manifest, and the content of each file of the lists in `folder`; None for a file to remove.

        Raises:
            DataError: the pictures are missing, damaged or incomplete.
        """


def benchmark(name: str) -> Benchmark:
    """Return the benchmark of a name.

    Raises:
        PluginError: the name is unknown, or the plugin cannot be used.
    """
    info, _, made = installed().make("benchmarks", name, {})
    checked: Benchmark = info.checked(made, Benchmark)
    return checked


def benchmarks() -> list[Benchmark]:
    """Return all installed benchmarks, sorted by name."""
    return [benchmark(name) for name in installed().names("benchmarks")]
