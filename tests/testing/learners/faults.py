"""Registry of faulty learners."""

from __future__ import annotations

import dataclasses
from typing import Any

from gradhomog import LearnerSpec
from tests.testing.fault import Fault
from tests.testing.learners.good import GOOD

FAULTS: list[Fault[LearnerSpec]] = []


def fails(check: str, message: str, **spec: Any) -> Any:
    """Register the decorated subclass of the good learner as faulty, with the same claims.

    `spec` replaces fields of its spec.
    """

    def register(factory: type) -> type:
        FAULTS.append(Fault(check, dataclasses.replace(GOOD, **{"factory": factory, **spec}), GOOD, message))
        return factory

    return register
