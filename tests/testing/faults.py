"""Registry of faulty plugins: one error each, the check that must find it, and the expected message."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradhomog.registry import Kind
from tests.testing.homogenizers.good import GOOD as HOMOGENIZERS
from tests.testing.learners.good import GOOD as LEARNERS

GOOD: dict[Kind, dict[type, Any]] = {"homogenizers": HOMOGENIZERS, "learners": LEARNERS}


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


def fault(name: str, base: type, check: str, message: str, spec: Any = None, /, **changes: Any) -> None:
    """Register a subclass of a good plugin in which `changes` replace attributes.

    A function replaces a method; it is called with the object, the good method, and the arguments.
    """
    changed = {key: _method(base, key, change) if callable(change) else change for key, change in changes.items()}
    unique = base.__name__ + name
    names = {"__module__": __name__, "__qualname__": unique, "__doc__": "A faulty plugin."}
    globals()[unique] = factory = type(name, (base,), {**names, **changed})  # global, so that it can be pickled
    fails(check, message, **(spec or {}))(factory)


def _method(base: type, name: str, change: Callable[..., Any]) -> Callable[..., Any]:
    good = getattr(base, name, None)

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        return change(self, good and good.__get__(self), *arguments, **named)

    return method if good is None else functools.wraps(good)(method)
