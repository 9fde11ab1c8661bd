"""The domain under check: made when first needed, with numbers of ways, shots and queries that it serves."""

from __future__ import annotations

import difflib
import functools
from typing import Any, get_args

import numpy as np

from gradhomog.domains import Domain, Split, split_domain
from gradhomog.errors import GradhomogError, OptionError, PluginRunError
from gradhomog.registry import Registry
from gradhomog.registry.options import bind
from gradhomog.specs import DomainSpec
from gradhomog.tasks import Task
from gradhomog.testing.checking import NotApplicable, describe_error
from gradhomog.testing.plugin_subject import PluginSubject

Numbers = dict[str, int]
"""Ways, shots and queries."""

SPLITS: tuple[Split, ...] = get_args(Split)
SIZE = 28  # pixels, as by default in a run
TOO_MANY = 10**6  # ways, shots or queries: more than any data set has
TRIED: tuple[Numbers, ...] = tuple(
    {"ways": ways, "shots": shots, "queries": queries} for ways, shots, queries in ((5, 2, 3), (3, 1, 2), (2, 1, 1))
)
SMALLEST = TRIED[-1]


class DomainSubject(PluginSubject[DomainSpec]):
    """A domain, by its text (`"glyphs:greek"`) or by its spec; without a variant, the first of those listed."""

    kind = "domains"
    spec_type = DomainSpec
    variant = ""

    def __init__(self, what: Any, registry: Registry | None = None) -> None:
        super().__init__(what, registry)
        known = self.spec.variants
        self.variant = self.variant or (known[0] if known else "")
        if known and self.variant not in known:
            near = difflib.get_close_matches(self.variant, known, n=1)
            hint = f" Did you mean '{self.name}:{near[0]}'?" if near else ""
            raise OptionError(f"{self.name} has no variant {self.variant!r}.{hint} Its variants: {', '.join(known)}.")
        bind(self.spec, self.name, self.options)

    def parse(self, text: str) -> tuple[str, dict[str, Any]]:
        name, self.variant, options = split_domain(text, self.registry)
        return name, dict(options)

    @property
    def title(self) -> str:
        return f"{self.name}:{self.variant}" if self.variant else self.name

    # -- making ------------------------------------------------------------------------------------------------------

    def make(self, variant: str | None = None, size: int = SIZE, /, **options: Any) -> Domain:
        """A fresh one, with the options it is checked with and others."""
        given, variant = {**self.options, **options}, self.variant if variant is None else variant
        if self.info is not None:
            made = self.registry.make("domains", self.name, given, variant, size=size)[2]
        else:
            made = self.spec.factory(variant, size=size, **bind(self.spec, self.name, given))
        if not isinstance(made, Domain):
            raise PluginRunError(f"{self} must make a gradhomog.Domain; it made a {type(made).__name__}.")
        return made

    def make_with(self, **options: Any) -> Domain:
        return self.make(None, options.pop("size", SIZE), **options)

    @property
    def invalid_options(self) -> list[tuple[str, int]]:
        """Values that a domain of images must refuse; without images `size` has no meaning."""
        return [("size", 0), ("size", -1)] if self.has_images else []

    @functools.cached_property
    def _made(self) -> tuple[Domain, dict[Split, Numbers]]:
        domain = self.make()
        served = {split: served_numbers(domain, split) for split in SPLITS}
        return domain, {split: numbers for split, numbers in served.items() if numbers is not None}

    @functools.cached_property
    def error(self) -> str:
        """Why it draws no task at all; empty if it does."""
        try:
            domain, served = self._made
            if not served:
                domain.check("all", **SMALLEST)
            for split, numbers in served.items():
                draw(domain, split, 0, numbers)
        except Exception as error:  # reported once, by the check `draws_tasks`
            return describe_error(error)
        return ""

    @property
    def domain(self) -> Domain:
        """One for all checks: a domain has no state, and a large data set is read once."""
        if self.error:
            raise NotApplicable("it draws no tasks: see the check `draws_tasks`")
        return self._made[0]

    def another(self) -> Domain:
        """One more, made alike."""
        _ = self.domain
        return self.make()

    @property
    def served(self) -> dict[Split, Numbers]:
        """The splits that serve tasks, and numbers that they serve."""
        _ = self.domain
        return self._made[1]

    @property
    def classifies(self) -> bool:
        return self.domain.outputs is None

    @property
    def has_images(self) -> bool:
        return len(self.domain.input_shape) == 3


def served_numbers(domain: Domain, split: Split) -> Numbers | None:
    """The first of a few numbers of ways, shots and queries that a split serves; None if it serves none."""
    return next((numbers for numbers in TRIED if serves(domain, split, numbers)), None)


def serves(domain: Domain, split: Split, numbers: Numbers) -> bool:
    """Whether `check` accepts such tasks."""
    try:
        domain.check(split, **numbers)
    except GradhomogError:
        return False
    return True


def largest(domain: Domain, split: Split, number: str, most: int) -> int:
    """The largest number of ways (shots, queries) that `check` accepts, the others being small; at most `most`."""

    def accepted(value: int) -> bool:
        return serves(domain, split, {**SMALLEST, number: value})

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


def generator(seed: int) -> np.random.Generator:
    """As a run makes one for each task."""
    return np.random.Generator(np.random.PCG64(seed))


def draw(domain: Domain, split: Split, seed: int, numbers: Numbers) -> Task:
    """The task of a seed."""
    return domain.sample(split, generator(seed), **numbers)
