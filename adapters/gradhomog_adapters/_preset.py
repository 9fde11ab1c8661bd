"""Helper for presets: a preset is an existing learner with some options fixed, registered under its own name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

Factory = TypeVar("Factory", bound=Callable[..., object])


def hide_options(learner: Callable[..., object], *options: str) -> Callable[[Factory], Factory]:
    """Decorate a preset of `learner`: its signature is that of the learner without the fixed options."""
    signature = inspect.signature(learner)
    parameters = [parameter for name, parameter in signature.parameters.items() if name not in options]

    def decorate(factory: Factory) -> Factory:
        vars(factory).update(__wrapped__=learner, __signature__=signature.replace(parameters=parameters))
        return factory

    return decorate
