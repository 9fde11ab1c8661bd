"""A domain: one distribution of tasks, with its own training, validation and test classes."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from gradhomog import expression
from gradhomog.errors import PluginRunError
from gradhomog.registry import Registry, installed
from gradhomog.tasks import Task

Split = Literal["train", "val", "test", "all"]
"""A part of a domain's classes. `"all"` is every class: for domains that a run only ever tests on."""


class Domain(ABC):
    """One distribution that tasks come from: a data set, a script, a family of functions.

    A subclass sets the attributes and implements `check` and `sample`. The same domain serves training and test:
    its splits share no class (classification) or no parameter draw (regression).

    Attributes:
        name: what reports call it, e.g. `"glyphs:greek"`.
        input_shape: shape of one input, e.g. `(3, 32, 32)` or `(1,)`.
        outputs: `None` for classification (the head has one output per way), else the number of regression targets.
        target_variance: regression: σ² > 0, the variance of the targets over all tasks of the domain, by which
            comparisons divide its mean squared errors; None if unknown, then errors are not divided.
    """

    name: str
    input_shape: tuple[int, ...]
    outputs: int | None = None
    target_variance: float | None = None

    @abstractmethod
    def check(self, split: Split, *, ways: int, shots: int, queries: int) -> None:
        """Raise `DataError`, naming domain, split and numbers, if such tasks cannot be drawn from this split."""

    @abstractmethod
    def sample(self, split: Split, random: np.random.Generator, *, ways: int, shots: int, queries: int) -> Task:
        """Draw one task: `ways` classes, each with `shots` support and `queries` query inputs, which are disjoint.

        All randomness comes from `random`, so that the generator's seed alone decides the task. For regression `ways`
        is ignored, and `shots` and `queries` count points.

        `Task.classes`, if set, holds numbers from `classes(split)`.
        """

    def classes(self, split: Split) -> Sequence[int]:
        """Numbers of all classes of a split, as `Task.classes` uses them; empty if it numbers none.

        Learners that classify all training classes at once need both.
        """
        return ()


def domain(text: str, *, size: int = 28, registry: Registry | None = None) -> Domain:
    """A domain by name: `domain("glyphs:greek(background=0.3)", size=28)`, or by path: `domain("images/birds.npz")`.

    `distribution:name` chooses between plugins of one name, and a further colon gives the variant. A text that ends in
    `.npz` or `.json`, or holds a path separator, is a file or folder for the domain plugin `images`.

    Raises:
        UnknownPluginError, OptionError, DataError.
    """
    registry = registry or installed()
    selector, variant, options = split_domain(text, registry)
    info, _, made = registry.make("domains", selector, options, variant, size=size)
    if not isinstance(made, Domain):
        raise PluginRunError(
            f"{info} must make a gradhomog.Domain; its factory returned {type(made).__name__}. {info.advice}"
        )
    return made


def domain_plugin(text: str) -> str:
    """The plugin named by a domain's text, as `Registry.find` accepts it."""
    return split_domain(text, installed())[0]


def domain_identity(text: str) -> str:
    """The domain of a text without its options: two texts of one identity share their classes."""
    plugin, variant, _ = split_domain(text, installed())
    return f"{plugin}:{os.path.realpath(variant) if plugin.endswith('images') else variant}"


def split_domain(text: str, registry: Registry) -> tuple[str, str, dict[str, Any]]:
    """Plugin, variant and options of a domain's text."""
    path, bracket, inside = text.partition("(")
    plugins = {info.name for info in registry.list("domains")}
    if path.endswith((".npz", ".json")) or "/" in path or "\\" in path or (path not in plugins and os.path.isdir(path)):
        plugin, colon, rest = path.partition(":")
        known = colon and plugin in registry.names("domains")
        options = expression.parse_one("images" + bracket + inside)[1]
        return (plugin, rest, options) if known else ("images", path, options)
    selector, options = expression.parse_one(text)
    parts = selector.split(":")
    selectors = {info.selector for info in registry.list("domains")}
    if len(parts) > 1 and ":".join(parts[:2]) in selectors:
        return ":".join(parts[:2]), ":".join(parts[2:]), options
    return parts[0], ":".join(parts[1:]), options
