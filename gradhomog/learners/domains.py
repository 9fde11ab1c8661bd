"""The base class of domains: distributions of tasks with disjoint training, validation and test classes."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from gradhomog.learners.tasks import Task
from gradhomog.registry import Registry, expression, installed

Split = Literal["train", "val", "test", "all"]
"""A part of a domain's classes. `"all"` is every class: for domains that a run uses for meta-test only."""


class Domain(ABC):
    """A distribution of tasks: a data set, an alphabet, a family of functions.

    A subclass sets the attributes and implements `check` and `sample`. The same domain provides training and test
    tasks: its splits share no class (classification) or no draw of parameters (regression).

    Attributes:
        name: the name in reports, e.g. `"glyphs:greek"`.
        input_shape: shape of one input, e.g. `(3, 32, 32)` or `(1,)`.
        outputs: `None` for classification (the head has one output per way), else the number of regression targets.
        target_variance: for regression, σ² > 0, the variance of the targets over all tasks of the domain. Comparisons
            divide mean squared errors by it; None if unknown, then errors are not divided.
    """

    name: str
    input_shape: tuple[int, ...]
    outputs: int | None = None
    target_variance: float | None = None

    @abstractmethod
    def check(self, split: Split, *, ways: int, shots: int, queries: int) -> None:
        """Raise `DataError` if such tasks cannot be drawn from a split; the message names domain, split and numbers."""

    @abstractmethod
    def sample(self, split: Split, random: np.random.Generator, *, ways: int, shots: int, queries: int) -> Task:
        """Draw one task: `ways` classes, each with `shots` support and `queries` query inputs, which are disjoint.

        All random numbers come from `random`, so that the task is a function of the generator's seed. Regression
        ignores `ways`; `shots` and `queries` are then numbers of points.

        `Task.classes`, if set, contains numbers from `classes(split)`.
        """

    @property
    def fingerprint(self) -> str | None:
        """A short hash of the data that tasks are drawn from, as the network receives them.

        Comparisons store it with every result and refuse to combine results of different data. None, the default, if
        the tasks depend on nothing but the domain's text and the version of its package.
        """
        return None

    def classes(self, split: Split) -> Sequence[int]:
        """Return the numbers of all classes of a split, as used in `Task.classes`; empty if classes have no numbers.

        Learners that classify all training classes at once require both.
        """
        return ()


def domain(text: str, *, size: int = 28, registry: Registry | None = None) -> Domain:
    """Create a domain from a name, `domain("glyphs:greek(background=0.3)", size=28)`, or a path, `domain("birds.npz")`.

    `distribution:name` selects one of several plugins with the same name; a variant follows after another colon. A text
    that ends in `.npz` or `.json`, or contains a path separator, is a file or folder for the domain plugin `images`.

    Raises:
        UnknownPluginError, OptionError, DataError.
    """
    registry = registry or installed()
    selector, variant, options = split_domain(text, registry)
    info, _, made = registry.make("domains", selector, options, variant, size=size)
    checked: Domain = info.checked(made, Domain)
    return checked


def domain_plugin(text: str) -> str:
    """Return the plugin named by a domain's text, in the form that `Registry.find` accepts."""
    return split_domain(text, installed())[0]


def domain_identity(text: str) -> str:
    """Return a domain's text without its options: texts with the same identity have the same classes."""
    plugin, variant, _ = split_domain(text, installed())
    return f"{plugin}:{os.path.realpath(variant) if plugin.endswith('images') else variant}"


def split_domain(text: str, registry: Registry) -> tuple[str, str, dict[str, Any]]:
    """Split a domain's text into plugin, variant and options."""
    path, bracket, inside = text.partition("(")
    plugins = {info.name for info in registry.list("domains")}
    if path.endswith((".npz", ".json")) or "/" in path or "\\" in path or (path not in plugins and os.path.isdir(path)):
        plugin, colon, rest = path.partition(":")
        known = colon and plugin in registry.names("domains")
        options = expression.parse_one("images" + bracket + inside)[1]
        return (plugin, rest, options) if known else ("images", path, options)
    selector, options = expression.parse_one(text)
    parts = selector.split(":")
    count = 2 if ":".join(parts[:2]) in {info.selector for info in registry.list("domains")} else 1
    return ":".join(parts[:count]), ":".join(parts[count:]), options
