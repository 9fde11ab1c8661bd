"""What a faulty plugin is: one error, the check that has to find it, and what its author needs to be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from gradhomog import DomainSpec, HomogenizerSpec, LearnerSpec

Spec = TypeVar("Spec", DomainSpec, HomogenizerSpec, LearnerSpec)


@dataclass(frozen=True)
class Fault(Generic[Spec]):
    """A faulty plugin.

    Attributes:
        check: that it must fail.
        spec: of the faulty one.
        says: a regular expression that the failure's message matches.
    """

    check: str
    spec: Spec
    says: str

    def __str__(self) -> str:
        return f"{self.check}-{self.spec.factory.__name__}"
