"""Registry of faulty homogenizers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from gradhomog import HomogenizerSpec
from tests.testing.fault import Fault
from tests.testing.homogenizers.good import GOOD

FAULTS: list[Fault[HomogenizerSpec]] = []


def fails(
    check: str, message: str, example_is_valid: Callable[..., bool] | None = None, claims: str = "", **spec: Any
) -> Any:
    """Register the decorated subclass of a good homogenizer as faulty, with the same claims and needs.

    `claims` are additional traits; `spec` replaces fields of its spec.
    """

    def register(factory: type) -> type:
        base = GOOD[next(parent for parent in factory.__mro__ if parent in GOOD)]
        traits = {*base.traits, *claims.split()}
        faulty = dataclasses.replace(base, **{"factory": factory, "traits": traits, **spec})
        FAULTS.append(Fault(check, faulty, base, message, example_is_valid))
        return factory

    return register
