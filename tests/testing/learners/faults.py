"""The faulty learners, and how one is noted."""

from __future__ import annotations

import dataclasses
from typing import Any

from gradhomog import LearnerSpec
from tests.testing.fault import Fault
from tests.testing.learners.good import GOOD

FAULTS: list[Fault[LearnerSpec]] = []


def fails(check: str, says: str, **told: Any) -> Any:
    """Note a subclass of the good learner as faulty; it claims what the good one does. `told` is said in its spec."""

    def note(made: type) -> type:
        FAULTS.append(Fault(check, dataclasses.replace(GOOD, **{"factory": made, **told}), says))
        return made

    return note
