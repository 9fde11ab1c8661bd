"""Presets: learners under their own name, which are others with some options given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

Factory = TypeVar("Factory", bound=Callable[..., object])


def without(learner: Callable[..., object], *options: str) -> Callable[[Factory], Factory]:
    """A decorator of a function that calls a learner with some options given: it shows the others as its own."""
    whole = inspect.signature(learner)
    parameters = [parameter for name, parameter in whole.parameters.items() if name not in options]

    def decorate(factory: Factory) -> Factory:
        vars(factory).update(__wrapped__=learner, __signature__=whole.replace(parameters=parameters))
        return factory

    return decorate
