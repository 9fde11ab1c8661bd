"""The faulty domains, and the decorator that registers one."""

from __future__ import annotations

import dataclasses
from typing import Any

from gradhomog import DomainSpec
from tests.testing.domains.good import GOOD
from tests.testing.fault import Fault

FAULTS: list[Fault[DomainSpec]] = []


def fails(check: str, message: str, **spec: Any) -> Any:
    """Register a subclass of a good domain as faulty. `spec` replaces fields of its spec."""

    def register(made: type) -> type:
        base = GOOD[next(parent for parent in made.__mro__ if parent in GOOD)]
        FAULTS.append(Fault(check, dataclasses.replace(base, **{"factory": made, **spec}), base, message))
        return made

    return register
