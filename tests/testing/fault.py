"""A faulty plugin: one error, the check that has to find it, and the words of the failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gradhomog import DomainSpec, HomogenizerSpec, LearnerSpec

Spec = TypeVar("Spec", DomainSpec, HomogenizerSpec, LearnerSpec)


@dataclass(frozen=True)
class Fault(Generic[Spec]):
    """A faulty plugin.

    Attributes:
        check: the check that must fail.
        spec: of the faulty plugin.
        good: the spec of the one without the error: with the same claims it passes that check.
        message: a regular expression that the failure's message matches.
        shows: given the example of the failure, whether it is small and shows the error.
    """

    check: str
    spec: Spec
    good: Spec
    message: str
    shows: Callable[..., bool] | None = None

    def __str__(self) -> str:
        return f"{self.check}-{self.spec.factory.__name__}"
