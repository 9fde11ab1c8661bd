"""Checks of plugins: registration, execution and results."""

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
"""The result of a check.

`"passed"`, `"failed"`: a check required of every plugin or of a claimed trait. `"held"`, `"not held"`: a check of a
trait that is not claimed; neither is a fault. `"expected"`: a failure listed in `expected_failures`. `"reported"`: a
measurement.
"""


class CheckFailure(AssertionError):
    """A property that does not hold, and the input that shows it.

    Attributes:
        example: the failing input by name, tensors as nested lists; of a searched input, the simplest that fails.
    """

    def __init__(self, message: str, **example: Any) -> None:
        super().__init__(message)
        self.example: Mapping[str, Any] = {name: plain(value) for name, value in example.items()}


class NotApplicable(Exception):
    """The check has nothing to test on this plugin; the message gives the reason."""


class Subject(Protocol):
    """The plugin under check, with a fresh object for every check, so that checks are independent."""

    @property
    def claims(self) -> Set[str]: ...


@dataclass(frozen=True)
class Check:
    """One property of a kind of plugin.

    Attributes:
        name: as in `expected_failures`, `--only` and test ids.
        kind: of plugin.
        claim: the trait that makes it binding; None if it binds every plugin.
        function: called with the subject; raises `CheckFailure`, or returns a measurement as a text.
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
        """The property in full, and the reason for it."""
        return inspect.getdoc(self.function) or ""

    def binds(self, subject: Subject) -> bool:
        """Whether failing it is a fault of this subject."""
        return self.claim is None or self.claim in subject.claims


@dataclass(frozen=True)
class CheckResult:
    """The result of one check of one subject.

    Attributes:
        check: its name.
        outcome: see `Outcome`.
        message: the fault, the measurement, or the reason why nothing was checked.
        example: the input that shows a failure, tensors as nested lists.
        seconds: duration of the check.
    """

    check: str
    outcome: Outcome
    message: str = ""
    example: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def record(self) -> dict[str, Any]:
        """Plain data for JSON, which has no NaN and no infinity: such numbers of an example become None."""
        return {
            "check": self.check, "outcome": self.outcome, "message": self.message,
            "example": _finite(dict(self.example)), "seconds": round(self.seconds, 3),
        }  # fmt: skip


KIT: dict[Kind, dict[str, Check]] = {"homogenizers": {}, "learners": {}, "domains": {}}
"""All checks by kind and name, filled by the decorator `check`."""

SHRINKING: ContextVar[bool] = ContextVar("shrinking", default=True)
"""Simplify failing inputs, done only where a failure is a fault."""

FAST: ContextVar[bool] = ContextVar("fast", default=False)
"""Run checks with fewer examples and steps, for the development loop."""


def check(*kinds: Kind, claim: str | None = None) -> Callable[[Callable[[Any], str | None]], Check]:
    """Register a function as a check of some kinds of plugins."""

    def register(function: Callable[[Any], str | None]) -> Check:
        for kind in kinds:
            made = KIT[kind][function.__name__] = Check(function.__name__, kind, claim, function)
        return made

    return register


def full_or_fast(full: int, fast: int) -> int:
    """The number of examples or steps in this mode."""
    return fast if FAST.get() else full


def run(check: Check, subject: Subject, reason: str | None = None, *, fast: bool = False) -> CheckResult:
    """Run one check; `reason` states why it is expected to fail, if it is."""
    start = time.perf_counter()
    outcome, message, example = _outcome(check, subject, fast, shrinks=reason is None)
    if reason is not None and outcome == "failed":
        outcome, message = "expected", f"{reason} ({message})"
    elif reason is not None and outcome in ("held", "not held"):
        outcome, message = "failed", f"'{check.claim}' is not claimed. Remove it from `expected_failures`."
    elif reason is not None and outcome != "not applicable":
        outcome = "failed"
        message = f"it was expected to fail ({reason}), but does not. Remove it from `expected_failures`."
    return CheckResult(check.name, outcome, message, example, time.perf_counter() - start)


def _outcome(check: Check, subject: Subject, fast: bool, shrinks: bool) -> tuple[Outcome, str, Mapping[str, Any]]:
    binding = check.binds(subject)
    tokens = SHRINKING.set(binding and shrinks), FAST.set(fast)
    try:
        measured = check.function(subject)
    except NotApplicable as why:
        return "not applicable", str(why), {}
    except CheckFailure as failure:
        return "failed" if binding else "not held", str(failure), failure.example
    except GradhomogError as error:  # a stage that raises: the message names the plugin
        return "failed" if binding else "not held", f"{type(error).__name__}: {error}", {}
    except Exception as error:  # one faulty plugin must not end the others' checks
        return "failed" if binding else "not held", describe_error(error), {}
    finally:
        SHRINKING.reset(tokens[0])
        FAST.reset(tokens[1])
    if measured is not None:
        return "reported", measured, {}
    return ("passed", "", {}) if binding else ("held", f"not claimed: '{check.claim}' could be added to its traits", {})


def describe_error(error: BaseException) -> str:
    """Type and first line of an error."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain(value: Any) -> Any:
    """Convert to JSON values: tensors to nested lists, other objects to their repr without the address."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
