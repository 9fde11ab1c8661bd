"""The faulty learners, and the decorator that registers one."""

from __future__ import annotations

import dataclasses
from typing import Any

from gradhomog import LearnerSpec
from tests.testing.fault import Fault
from tests.testing.learners.good import GOOD

FAULTS: list[Fault[LearnerSpec]] = []


def fails(check: str, message: str, **spec: Any) -> Any:
    """Register a subclass of the good learner as faulty; it claims what the good one does. `spec` replaces fields."""

    def register(made: type) -> type:
        FAULTS.append(Fault(check, dataclasses.replace(GOOD, **{"factory": made, **spec}), GOOD, message))
        return made

    return register
