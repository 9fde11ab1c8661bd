"""The domain under check, made lazily, and numbers of ways, shots and queries that it supports."""

from __future__ import annotations

import functools
from typing import Any, get_args

import numpy as np

from gradhomog.errors import GradhomogError, OptionError, PluginRunError, did_you_mean
from gradhomog.learners.domains import Domain, Split, split_domain
from gradhomog.learners.tasks import Task
from gradhomog.registry import Registry
from gradhomog.registry.options import bind
from gradhomog.registry.specs import DomainSpec
from gradhomog.testing.check import NotApplicable, describe_error
from gradhomog.testing.plugin_subject import PluginSubject

Numbers = dict[str, int]
"""Ways, shots and queries."""

SPLITS: tuple[Split, ...] = get_args(Split)
SIZE = 28  # pixels; the default of runs
TOO_MANY = 10**6  # ways, shots or queries: more than any data set has
CANDIDATES: tuple[Numbers, ...] = tuple(
    {"ways": ways, "shots": shots, "queries": queries} for ways, shots, queries in ((5, 2, 3), (3, 1, 2), (2, 1, 1))
)
SMALLEST = CANDIDATES[-1]


class DomainSubject(PluginSubject[DomainSpec]):
    """The domain under check, given as text (`"glyphs:greek"`) or spec. The default variant is the first listed one."""

    kind = "domains"
    spec_type = DomainSpec
    variant = ""

    def __init__(self, plugin: Any, registry: Registry | None = None) -> None:
        super().__init__(plugin, registry)
        listed = self.spec.variants
        self.variant = self.variant or (listed[0] if listed else "")
        if listed and self.variant not in listed:
            hint = did_you_mean(self.variant, listed, f"'{self.name}:{{}}'")
            raise OptionError(f"{self.name} has no variant {self.variant!r}.{hint} Its variants: {', '.join(listed)}.")
        bind(self.spec, self.name, self.options)

    def parse(self, text: str) -> tuple[str, dict[str, Any]]:
        name, self.variant, options = split_domain(text, self.registry)
        return name, dict(options)

    @property
    def title(self) -> str:
        return f"{self.name}:{self.variant}" if self.variant else self.name

    # -- making ------------------------------------------------------------------------------------------------------

    def make(self, variant: str | None = None, size: int = SIZE, /, **options: Any) -> Domain:
        """Make a fresh domain with the options under check, updated by `options`."""
        merged, variant = {**self.options, **options}, self.variant if variant is None else variant
        if self.info is not None:
            domain = self.registry.make("domains", self.name, merged, variant, size=size)[2]
        else:
            domain = self.spec.factory(variant, size=size, **bind(self.spec, self.name, merged))
        if not isinstance(domain, Domain):
            raise PluginRunError(f"{self} must make a gradhomog.Domain; got {type(domain).__name__}.")
        return domain

    def make_with(self, **options: Any) -> Domain:
        return self.make(None, options.pop("size", SIZE), **options)

    @property
    def invalid_options(self) -> list[tuple[str, int]]:
        """Option values that a domain of images must reject. Other domains ignore `size`."""
        return [("size", 0), ("size", -1)] if self.has_images else []

    @functools.cached_property
    def _domain_and_supported(self) -> tuple[Domain, dict[Split, Numbers]]:
        domain = self.make()
        supported = {split: supported_numbers(domain, split) for split in SPLITS}
        return domain, {split: numbers for split, numbers in supported.items() if numbers is not None}

    @functools.cached_property
    def error(self) -> str:
        """The error of making the domain or drawing a task; empty without an error."""
        try:
            domain, supported = self._domain_and_supported
            if not supported:
                domain.check("all", **SMALLEST)
            for split, numbers in supported.items():
                draw_task(domain, split, 0, numbers)
        except Exception as error:  # reported once, by the check `draws_tasks`
            return describe_error(error)
        return ""

    @property
    def domain(self) -> Domain:
        """The domain, shared by all checks: it has no state, and a large data set is read only once."""
        if self.error:
            raise NotApplicable("the domain draws no tasks: see the check `draws_tasks`")
        return self._domain_and_supported[0]

    def make_fresh(self) -> Domain:
        """Make another domain with the same options."""
        _ = self.domain
        return self.make()

    @property
    def supported(self) -> dict[Split, Numbers]:
        """Ways, shots and queries that each split supports; splits without tasks are left out."""
        _ = self.domain
        return self._domain_and_supported[1]

    @property
    def classifies(self) -> bool:
        return self.domain.outputs is None

    @property
    def has_images(self) -> bool:
        return len(self.domain.input_shape) == 3


def supported_numbers(domain: Domain, split: Split) -> Numbers | None:
    """Return the first of the `CANDIDATES` that a split supports; None if it supports none."""
    return next((numbers for numbers in CANDIDATES if supports(domain, split, numbers)), None)


def supports(domain: Domain, split: Split, numbers: Numbers) -> bool:
    """True if the domain's `check` accepts these numbers."""
    try:
        domain.check(split, **numbers)
    except GradhomogError:
        return False
    return True


def largest_accepted(domain: Domain, split: Split, number: str, most: int) -> int:
    """Return the largest number of ways (or shots, queries) that `check` accepts, at most `most`.

    The other two numbers are the smallest ones.
    """

    def accepted(value: int) -> bool:
        return supports(domain, split, {**SMALLEST, number: value})

    if accepted(most):
        return most
    low, high = 0, 1
    while high < most and accepted(high):
        low, high = high, 2 * high
    high = min(high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepted(middle) else (low, middle)
    return low


def seeded_generator(seed: int) -> np.random.Generator:
    """Return a generator like the one that a run makes for each task."""
    return np.random.Generator(np.random.PCG64(seed))


def draw_task(domain: Domain, split: Split, seed: int, numbers: Numbers) -> Task:
    """Draw the task of a seed."""
    return domain.sample(split, seeded_generator(seed), **numbers)
