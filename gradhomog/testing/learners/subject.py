"""A learner under check: made anew as often as needed, on a small network, with few-shot tasks to go with it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Set
from typing import Any, Literal, get_args

import torch
from torch import nn

from gradhomog import api
from gradhomog.engine.finite import Nonfinite
from gradhomog.errors import GradhomogError, PluginRunError
from gradhomog.learners import Learner
from gradhomog.registry import PluginInfo, Registry, installed
from gradhomog.registry.options import bind
from gradhomog.specs import LearnerSpec
from gradhomog.tasks import Task, TaskBatch
from gradhomog.testing.arena import WAYS, network, task
from gradhomog.testing.checking import NotApplicable
from gradhomog.testing.generators import seeded
from gradhomog.testing.naming import described, name_and_options

What = str | tuple[str, Mapping[str, Any]] | LearnerSpec
"""A plugin's name, with options in the text or beside it; or a spec that no distribution offers yet."""

Served = Literal["classification", "regression"]
TARGETS: dict[Served, int | None] = {"classification": None, "regression": 2}


class LearnerSubject:
    """A learner, by name or by its spec, with the options it is checked with.

    Raises:
        UnknownPluginError, PluginLoadError, OptionError, …: there is no such learner, or it has no such option.
    """

    def __init__(self, what: What, registry: Registry | None = None) -> None:
        self.registry = registry or installed()
        self.info: PluginInfo | None = None
        self.options: dict[str, Any] = {}
        if isinstance(what, LearnerSpec):
            self.spec, self.name = what, getattr(what.factory, "__name__", "learner")
        else:
            self.name, self.options = name_and_options("learners", what)
            self.info, spec = self.registry.load("learners", self.name)
            assert isinstance(spec, LearnerSpec)
            self.spec = spec
        bind(self.spec, self.name, self.options)

    def __str__(self) -> str:
        return described("learners", self.name, self.options, self.info)

    @property
    def claims(self) -> Set[str]:
        return self.spec.traits

    # -- what it can be checked on -------------------------------------------------------------------------------------

    @functools.cached_property
    def refusals(self) -> dict[Served, Exception]:
        """Why it forms no rows on the small network, by kind of task; empty if it does."""
        found: dict[Served, Exception] = {}
        for served in get_args(Served):
            try:
                self.learner(served=served).rows(self.batch(served=served))
            except Exception as error:  # what it is, the checks that are about it say
                found[served] = error
        return found

    @property
    def served(self) -> Served:
        """The kind of task that it is checked on: classification, if it can do it."""
        for served in get_args(Served):
            if served not in self.refusals:
                return served  # type: ignore[no-any-return]
        raise NotApplicable("it forms no rows on a small network: see the check `forms_rows`")

    @functools.cached_property
    def takes_norm(self) -> bool:
        """Whether it does not refuse a network with batch normalization."""
        try:
            self.learner(norm=True).rows(self.batch())
        except GradhomogError:
            return False
        except Exception:  # not a refusal: the check of batch normalization says what it is
            return True
        return True

    # -- making --------------------------------------------------------------------------------------------------------

    def make(
        self, encoder: nn.Module, head: nn.Module, homogenizers: Any = None, seed: int = 0, /, **options: Any
    ) -> Learner:
        """A fresh one on a network, with the options it is checked with and others.

        The seed is the global generators' while it is made: modules of its own are initialised as others are.
        """
        given, pipe = {**self.options, **options}, api.pipeline(homogenizers, registry=self.registry)
        with seeded(seed):
            if self.info is not None:
                made = self.registry.make("learners", self.name, given, encoder, head, homogenizers=pipe)[2]
            else:
                made = self.spec.factory(encoder, head, homogenizers=pipe, **bind(self.spec, self.name, given))
        if not isinstance(made, Learner):
            raise PluginRunError(f"{self} must make a gradhomog.Learner; it made a {type(made).__name__}.")
        return made

    def learner(
        self, homogenizers: Any = None, *, seed: int = 0, norm: bool = False, dtype: torch.dtype = torch.float64,
        served: Served | None = None, nonfinite: Nonfinite = "raise",
    ) -> Learner:  # fmt: skip
        """A fresh one on a network of its own, initialised by seed, for the kind of task that it is checked on."""
        encoder, head = network(seed, TARGETS[served or self.served] or WAYS, norm)
        pipe = api.pipeline(homogenizers, nonfinite=nonfinite, registry=self.registry)
        return self.make(encoder.to(dtype), head.to(dtype), pipe, seed)

    def task(self, seed: int, domain: str = "", served: Served | None = None) -> Task:
        """A task for it, float64."""
        return task(seed, domain, shots=2, queries=3, targets=TARGETS[served or self.served])

    def batch(self, seed: int = 0, tasks: int = 3, served: Served | None = None) -> TaskBatch:
        """Different tasks of different domains, float64."""
        return TaskBatch.stack([self.task(100 * seed + slot, f"domain {slot}", served) for slot in range(tasks)])
