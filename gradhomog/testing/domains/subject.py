"""A domain under check: made when first needed, with numbers of ways, shots and queries that it serves."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Set
from typing import Any, get_args

import numpy as np

from gradhomog import api
from gradhomog.domains import Domain, Split
from gradhomog.errors import GradhomogError, OptionError, PluginRunError
from gradhomog.registry import PluginInfo, Registry, installed
from gradhomog.registry.options import bind
from gradhomog.specs import DomainSpec
from gradhomog.tasks import Task
from gradhomog.testing.checking import NotApplicable
from gradhomog.testing.naming import described, name_and_options

What = str | tuple[str, Mapping[str, Any]] | DomainSpec
"""A domain's text, with options in it or beside it; or a spec that no distribution offers yet."""

Numbers = dict[str, int]
"""Ways, shots and queries."""

SPLITS: tuple[Split, ...] = get_args(Split)
SIZE = 28  # pixels, as by default in a run
MANY = 10**6  # ways, shots or queries that no data set has
TRIED: tuple[Numbers, ...] = tuple(
    {"ways": ways, "shots": shots, "queries": queries} for ways, shots, queries in ((5, 2, 3), (3, 1, 2), (2, 1, 1))
)


class DomainSubject:
    """A domain, by its text or by its spec; where no variant is given, the first of those listed.

    Raises:
        UnknownPluginError, PluginLoadError, OptionError, …: there is no such domain, variant or option.
    """

    def __init__(self, what: What, registry: Registry | None = None) -> None:
        self.registry = registry or installed()
        self.info: PluginInfo | None = None
        self.options: dict[str, Any] = {}
        variant = ""
        if isinstance(what, DomainSpec):
            self.spec, self.plugin = what, getattr(what.factory, "__name__", "domain")
        else:
            text, beside = (what, {}) if isinstance(what, str) else name_and_options("domains", what)
            self.plugin, variant, written = api._split_domain(text, self.registry)
            self.options = {**written, **beside}
            self.info, spec = self.registry.load("domains", self.plugin)
            assert isinstance(spec, DomainSpec)
            self.spec = spec
        self.variant: str = variant or (self.spec.variants[0] if self.spec.variants else "")
        self._check_variant()
        bind(self.spec, self.plugin, self.options)

    def _check_variant(self) -> None:
        known = self.spec.variants
        if known and self.variant not in known:
            near = difflib.get_close_matches(self.variant, known, n=1)
            hint = f" Did you mean '{self.plugin}:{near[0]}'?" if near else ""
            raise OptionError(f"{self.plugin} has no variant {self.variant!r}.{hint} Its variants: {', '.join(known)}.")

    def __str__(self) -> str:
        name = f"{self.plugin}:{self.variant}" if self.variant else self.plugin
        return described("domains", name, self.options, self.info)

    @property
    def claims(self) -> Set[str]:
        return frozenset()

    # -- making --------------------------------------------------------------------------------------------------------

    def make(self, variant: str | None = None, size: int = SIZE, /, **options: Any) -> Domain:
        """A fresh one, with the options it is checked with and others."""
        given, variant = {**self.options, **options}, self.variant if variant is None else variant
        if self.info is not None:
            made = self.registry.make("domains", self.plugin, given, variant, size=size)[2]
        else:
            made = self.spec.factory(variant, size=size, **bind(self.spec, self.plugin, given))
        if not isinstance(made, Domain):
            raise PluginRunError(f"{self} must make a gradhomog.Domain; it made a {type(made).__name__}.")
        return made

    @functools.cached_property
    def _made(self) -> tuple[Domain, dict[Split, Numbers]]:
        domain = self.make()
        served = {split: served_numbers(domain, split) for split in SPLITS}
        return domain, {split: numbers for split, numbers in served.items() if numbers is not None}

    @functools.cached_property
    def trouble(self) -> str:
        """Why it draws no task at all; empty if it does."""
        try:
            domain, served = self._made
            if not served:
                domain.check("all", **TRIED[-1])
            for split, numbers in served.items():
                draw(domain, split, 0, numbers)
        except Exception as error:  # whatever it is, it is told once, by the check `draws_tasks`
            return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        return ""

    @property
    def domain(self) -> Domain:
        """One for all checks: a domain remembers nothing, and one large data set is read once."""
        if self.trouble:
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
    """The greatest number of ways (shots, queries) that `check` accepts, the others being small; `most` if any."""

    def accepted(value: int) -> bool:
        return serves(domain, split, {**TRIED[-1], number: value})

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
