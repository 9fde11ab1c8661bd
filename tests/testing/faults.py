"""Registry of faulty plugins: one error each, the check that must find it, and the expected message."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from gradhomog.registry import Kind
from tests.testing.domains.good import GOOD as DOMAINS
from tests.testing.homogenizers.good import GOOD as HOMOGENIZERS
from tests.testing.learners.good import GOOD as LEARNERS

GOOD: dict[Kind, dict[type, Any]] = {"homogenizers": HOMOGENIZERS, "learners": LEARNERS, "domains": DOMAINS}


@dataclass(frozen=True)
class Fault:
    """A faulty plugin and the failure that its check must report.

    Attributes:
        kind: kind of the plugin.
        check: name of the check that must fail.
        spec: spec of the faulty plugin.
        message: regular expression that the message of the failure must match.
    """

    kind: Kind
    check: str
    spec: Any
    message: str

    def __str__(self) -> str:
        return f"{self.check}-{self.spec.factory.__name__}"


FAULTS: list[Fault] = []


def fails(check: str, message: str, claims: str = "", **spec: Any) -> Any:
    """Register the decorated subclass of a good plugin as faulty, with the same claims and needs.

    `claims` are additional traits; `spec` replaces fields of its spec.
    """

    def register(factory: type) -> type:
        kind, base = next(
            (kind, good[parent]) for parent in factory.__mro__ for kind, good in GOOD.items() if parent in good
        )
        if claims:
            spec["traits"] = {*base.traits, *claims.split()}
        faulty = dataclasses.replace(base, **{"factory": factory, **spec})
        FAULTS.append(Fault(kind, check, faulty, message))
        return factory

    return register
