"""What a faulty learner is: one error, the check that has to find it, and what its author needs to be told."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from gradhomog import LearnerSpec
from tests.testing.learners.good import GOOD


@dataclass(frozen=True)
class Fault:
    """A faulty learner.

    Attributes:
        check: that it must fail.
        spec: of the faulty one.
        says: a regular expression that the failure's message matches.
    """

    check: str
    spec: LearnerSpec
    says: str

    def __str__(self) -> str:
        return f"{self.check}-{self.spec.factory.__name__}"


FAULTS: list[Fault] = []


def fails(check: str, says: str, **told: Any) -> Any:
    """Note a subclass of the good learner as faulty; it claims what the good one does. `told` is said in its spec."""

    def note(made: type) -> type:
        FAULTS.append(Fault(check, dataclasses.replace(GOOD, **{"factory": made, **told}), says))
        return made

    return note
