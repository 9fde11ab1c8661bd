"""What a faulty homogenizer is: one error, the check that has to find it, and what its author needs to be told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradhomog import HomogenizerSpec
from tests.testing.homogenizers.good import GOOD


@dataclass(frozen=True)
class Fault:
    """A faulty homogenizer.

    Attributes:
        check: that it must fail.
        spec: of the faulty one.
        good: of the one that it would be without the error: with the same claims it passes that check.
        says: a regular expression that the failure's message matches.
        shows: given the example of the failure, whether it is small and really shows the error.
    """

    check: str
    spec: HomogenizerSpec
    good: HomogenizerSpec
    says: str
    shows: Callable[..., bool] | None = None

    def __str__(self) -> str:
        return f"{self.check}-{self.spec.factory.__name__}"


FAULTS: list[Fault] = []


def fails(check: str, says: str, shows: Callable[..., bool] | None = None, claims: str = "", **told: Any) -> Any:
    """Note a subclass of a good homogenizer as faulty; it claims and needs what the good one does.

    `claims` is one trait more; `told` replaces what its spec says.
    """

    def note(made: type) -> type:
        base = GOOD[next(parent for parent in made.__mro__ if parent in GOOD)]
        traits = {*base.traits, *claims.split()}
        spec = dataclasses.replace(base, **{"factory": made, "traits": traits, **told})
        FAULTS.append(Fault(check, spec, base, says, shows))
        return made

    return note
