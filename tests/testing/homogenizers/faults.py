"""The faulty homogenizers, and how one is noted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradhomog import HomogenizerSpec
from tests.testing.fault import Fault
from tests.testing.homogenizers.good import GOOD


@dataclass(frozen=True)
class FaultyHomogenizer(Fault[HomogenizerSpec]):
    """A faulty homogenizer.

    Attributes:
        good: the spec of the one that it would be without the error: with the same claims it passes that check.
        shows: given the example of the failure, whether it is small and really shows the error.
    """

    good: HomogenizerSpec
    shows: Callable[..., bool] | None = None


FAULTS: list[FaultyHomogenizer] = []


def fails(check: str, says: str, shows: Callable[..., bool] | None = None, claims: str = "", **told: Any) -> Any:
    """Note a subclass of a good homogenizer as faulty; it claims and needs what the good one does.

    `claims` is one trait more; `told` replaces what its spec says.
    """

    def note(made: type) -> type:
        base = GOOD[next(parent for parent in made.__mro__ if parent in GOOD)]
        traits = {*base.traits, *claims.split()}
        spec = dataclasses.replace(base, **{"factory": made, "traits": traits, **told})
        FAULTS.append(FaultyHomogenizer(check, spec, says, base, shows))
        return made

    return note
