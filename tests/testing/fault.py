"""A faulty plugin for tests: one error, the check that must find it, and the expected message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gradhomog import DomainSpec, HomogenizerSpec, LearnerSpec

Spec = TypeVar("Spec", DomainSpec, HomogenizerSpec, LearnerSpec)


@dataclass(frozen=True)
class Fault(Generic[Spec]):
    """A faulty plugin and the failure that its check must report.

    Attributes:
        check: name of the check that must fail.
        spec: spec of the faulty plugin.
        good: spec of the plugin without the error; with the same claims it passes the check.
        message: regular expression that the message of the failure must match.
        example_is_valid: called with the example of the failure; True if it is small and a counterexample.
    """

    check: str
    spec: Spec
    good: Spec
    message: str
    example_is_valid: Callable[..., bool] | None = None

    def __str__(self) -> str:
        return f"{self.check}-{self.spec.factory.__name__}"
