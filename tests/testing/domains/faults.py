"""What a faulty domain is: one error, the check that has to find it, and what its author needs to be told."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from gradhomog import DomainSpec
from tests.testing.domains.good import GOOD


@dataclass(frozen=True)
class Fault:
    """A faulty domain.

    Attributes:
        check: that it must fail.
        spec: of the faulty one.
        says: a regular expression that the failure's message matches.
    """

    check: str
    spec: DomainSpec
    says: str

    def __str__(self) -> str:
        return f"{self.check}-{self.spec.factory.__name__}"


FAULTS: list[Fault] = []


def fails(check: str, says: str, **told: Any) -> Any:
    """Note a subclass of a good domain as faulty. `told` is said in its spec."""

    def note(made: type) -> type:
        base = GOOD[next(parent for parent in made.__mro__ if parent in GOOD)]
        FAULTS.append(Fault(check, dataclasses.replace(base, **{"factory": made, **told}), says))
        return made

    return note
