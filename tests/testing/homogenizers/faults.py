"""The faulty homogenizers, and the decorator that registers one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from gradhomog import HomogenizerSpec
from tests.testing.fault import Fault
from tests.testing.homogenizers.good import GOOD

FAULTS: list[Fault[HomogenizerSpec]] = []


def fails(check: str, message: str, shows: Callable[..., bool] | None = None, claims: str = "", **spec: Any) -> Any:
    """Register a subclass of a good homogenizer as faulty; it claims and needs what the good one does.

    `claims` is one trait more; `spec` replaces fields of its spec.
    """

    def register(made: type) -> type:
        base = GOOD[next(parent for parent in made.__mro__ if parent in GOOD)]
        traits = {*base.traits, *claims.split()}
        faulty = dataclasses.replace(base, **{"factory": made, "traits": traits, **spec})
        FAULTS.append(Fault(check, faulty, base, message, shows))
        return made

    return register
