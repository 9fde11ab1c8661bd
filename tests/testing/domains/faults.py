"""The faulty domains, and how one is noted."""

from __future__ import annotations

import dataclasses
from typing import Any

from gradhomog import DomainSpec
from tests.testing.domains.good import GOOD
from tests.testing.fault import Fault

FAULTS: list[Fault[DomainSpec]] = []


def fails(check: str, says: str, **told: Any) -> Any:
    """Note a subclass of a good domain as faulty. `told` is said in its spec."""

    def note(made: type) -> type:
        base = GOOD[next(parent for parent in made.__mro__ if parent in GOOD)]
        FAULTS.append(Fault(check, dataclasses.replace(base, **{"factory": made, **told}), says))
        return made

    return note
