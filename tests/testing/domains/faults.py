"""Registry of faulty domains."""

from __future__ import annotations

import dataclasses
from typing import Any

from gradhomog import DomainSpec
from tests.testing.domains.good import GOOD
from tests.testing.fault import Fault

FAULTS: list[Fault[DomainSpec]] = []


def fails(check: str, message: str, **spec: Any) -> Any:
    """Register the decorated subclass of a good domain as faulty. `spec` replaces fields of its spec."""

    def register(factory: type) -> type:
        base = GOOD[next(parent for parent in factory.__mro__ if parent in GOOD)]
        FAULTS.append(Fault(check, dataclasses.replace(base, **{"factory": factory, **spec}), base, message))
        return factory

    return register
