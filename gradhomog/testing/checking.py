"""What a check is, what it comes to, and how one is run."""

from __future__ import annotations

import inspect
import math
import re
import time
from collections.abc import Callable, Mapping, Set
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from gradhomog.errors import GradhomogError
from gradhomog.registry import Kind

Outcome = Literal["passed", "failed", "held", "not held", "expected", "not applicable", "reported"]
"""What a check came to.

`"passed"`, `"failed"`: of what is asked of everybody, or is claimed. `"held"`, `"not held"`: of a trait that is not
claimed; neither is a fault. `"expected"`: it failed, as the caller said it would. `"reported"`: a measurement.
"""


class CheckFailure(AssertionError):
    """What a check found wrong, and the input that showed it.

    Attributes:
        example: by name, tensors as nested lists; shrunk to the simplest that still fails where it was searched for.
    """

    def __init__(self, message: str, **example: Any) -> None:
        super().__init__(message)
        self.example: Mapping[str, Any] = {name: plain(value) for name, value in example.items()}


class NotApplicable(Exception):
    """There is nothing to check here, and why."""


class Subject(Protocol):
    """What is checked: made anew for every check, so that no check sees what another one left."""

    @property
    def claims(self) -> Set[str]: ...


@dataclass(frozen=True)
class Check:
    """One property of a kind of plugin.

    Attributes:
        name: as in `expected_failures`, `--only` and test ids.
        kind: of plugin.
        claim: the trait that makes it binding; None if it is asked of all.
        function: called with the subject; raises `CheckFailure`, or returns what it measured, as a text.
    """

    name: str
    kind: Kind
    claim: str | None
    function: Callable[[Any], str | None] = field(repr=False)

    @property
    def summary(self) -> str:
        """The property in one sentence."""
        return (inspect.getdoc(self.function) or "").partition("\n\n")[0].replace("\n", " ")

    @property
    def explanation(self) -> str:
        """What it asks in full, and why."""
        return inspect.getdoc(self.function) or ""

    def binds(self, subject: Subject) -> bool:
        """Whether failing it is a fault of this subject."""
        return self.claim is None or self.claim in subject.claims


@dataclass(frozen=True)
class CheckResult:
    """What one check of one subject came to.

    Attributes:
        check: its name.
        outcome: see `Outcome`.
        message: what was found wrong, measured, or why nothing was checked.
        example: the input that showed a failure, tensors as nested lists.
        seconds: it took.
    """

    check: str
    outcome: Outcome
    message: str = ""
    example: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def record(self) -> dict[str, Any]:
        """Plain data, for JSON: it knows no NaN and no infinity, so such numbers of an example are None."""
        return {
            "check": self.check, "outcome": self.outcome, "message": self.message,
            "example": _finite(dict(self.example)), "seconds": round(self.seconds, 3),
        }  # fmt: skip


KIT: dict[Kind, dict[str, Check]] = {"homogenizers": {}, "learners": {}, "domains": {}}
"""All checks by kind and name, in the order in which they are run: filled by the decorator `check`."""


def check(kind: Kind, claim: str | None = None) -> Callable[[Callable[[Any], str | None]], Check]:
    """Make a function a check of the kit, called as the function is."""

    def enter(function: Callable[[Any], str | None]) -> Check:
        made = Check(function.__name__, kind, claim, function)
        KIT[kind][made.name] = made
        return made

    return enter


SHRINKING: ContextVar[bool] = ContextVar("shrinking", default=True)
"""Whether a broken property's input is worth the time to simplify: only where it is a fault."""


def run(check: Check, subject: Subject, reason: str | None = None) -> CheckResult:
    """Run one check; `reason` says why it is expected to fail, if it is."""
    start = time.perf_counter()
    outcome, message, example = _judge(check, subject)
    if reason is not None and outcome == "failed":
        outcome, message = "expected", f"{reason} ({message})"
    elif reason is not None and outcome in ("held", "not held"):
        outcome, message = "failed", f"'{check.claim}' is not claimed, so no failure is to be expected: take it out"
    elif reason is not None and outcome != "not applicable":
        outcome = "failed"
        message = f"it was expected to fail ({reason}), and does not: take it out of the expected failures"
    return CheckResult(check.name, outcome, message, example, time.perf_counter() - start)


def _judge(check: Check, subject: Subject) -> tuple[Outcome, str, Mapping[str, Any]]:
    binding = check.binds(subject)
    token = SHRINKING.set(binding)
    try:
        measured = check.function(subject)
    except NotApplicable as why:
        return "not applicable", str(why), {}
    except CheckFailure as failure:
        return "failed" if binding else "not held", str(failure), failure.example
    except GradhomogError as error:  # a stage that raises: the message names the plugin
        return "failed" if binding else "not held", f"{type(error).__name__}: {error}", {}
    except Exception as error:  # one faulty plugin must not end the others' checks
        return "failed" if binding else "not held", f"{type(error).__name__}: {_first_line(error)}", {}
    finally:
        SHRINKING.reset(token)
    if measured is not None:
        return "reported", measured, {}
    return ("passed", "", {}) if binding else ("held", f"not claimed: '{check.claim}' could stand in its traits", {})


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain(value: Any) -> Any:
    """Tensors as nested lists, other objects as what JSON has."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
