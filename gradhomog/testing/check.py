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
trait that is not claimed; neither is a failure. `"expected"`: a failure listed in `expected_failures`. `"reported"`: a
measurement.
"""


class CheckFailure(AssertionError):
    """Raised by a check when its property does not hold.

    Attributes:
        example: the failing input by name, tensors as nested lists; after a search, the simplest failing input found.
    """

    def __init__(self, message: str, **example: Any) -> None:
        super().__init__(message)
        self.example: Mapping[str, Any] = {name: to_plain_data(value) for name, value in example.items()}


class NotApplicable(Exception):
    """Raised by a check that has nothing to test on this plugin; the message gives the reason."""


class Subject(Protocol):
    """The plugin under check. Each check makes fresh objects of it, so checks are independent."""

    @property
    def claims(self) -> Set[str]: ...


@dataclass(frozen=True)
class Check:
    """A check of one property of one kind of plugin.

    Attributes:
        name: the name used by `expected_failures`, `--only` and test ids.
        kind: the kind of plugin.
        claim: the trait that makes the check binding; None if it binds every plugin.
        function: called with the subject; raises `CheckFailure`, or returns a measurement as a string.
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
        """The full description of the property, with its reason."""
        return inspect.getdoc(self.function) or ""

    def binds(self, subject: Subject) -> bool:
        """True if the check is required of every plugin or the subject claims its trait."""
        return self.claim is None or self.claim in subject.claims


@dataclass(frozen=True)
class CheckResult:
    """The result of one check of one subject.

    Attributes:
        check: name of the check.
        outcome: see `Outcome`.
        message: the failure, the measurement, or the reason why the check is not applicable.
        example: the failing input by name, tensors as nested lists.
        seconds: duration of the check.
    """

    check: str
    outcome: Outcome
    message: str = ""
    example: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def record(self) -> dict[str, Any]:
        """Return the fields as a dict for JSON; NaN and infinity in the example become None: JSON has neither."""
        return {
            "check": self.check, "outcome": self.outcome, "message": self.message,
            "example": _replace_nonfinite(dict(self.example)), "seconds": round(self.seconds, 3),
        }  # fmt: skip


KIT: dict[Kind, dict[str, Check]] = {"homogenizers": {}, "learners": {}, "domains": {}}
"""All checks by kind and name, filled by the decorator `check`."""

SHRINKING: ContextVar[bool] = ContextVar("shrinking", default=True)
"""True if failing inputs are simplified. Only failures of binding checks are."""

FAST: ContextVar[bool] = ContextVar("fast", default=False)
"""True if checks run with fewer examples and steps, for the development loop."""


def check(*kinds: Kind, claim: str | None = None) -> Callable[[Callable[[Any], str | None]], Check]:
    """Register a function as a check of some kinds of plugins."""

    def register(function: Callable[[Any], str | None]) -> Check:
        for kind in kinds:
            registered = KIT[kind][function.__name__] = Check(function.__name__, kind, claim, function)
        return registered

    return register


def full_or_fast(full: int, fast: int) -> int:
    """Return `fast` in the fast mode, else `full`."""
    return fast if FAST.get() else full


def run(check: Check, subject: Subject, reason: str | None = None, *, fast: bool = False) -> CheckResult:
    """Run one check. A `reason` marks it as an expected failure."""
    start = time.perf_counter()
    outcome, message, example = _outcome(check, subject, fast, shrinks=reason is None)
    if reason is not None and outcome == "failed":
        outcome, message = "expected", f"{reason} ({message})"
    elif reason is not None and outcome in ("held", "not held"):
        outcome, message = "failed", f"'{check.claim}' is not claimed. Remove it from `expected_failures`."
    elif reason is not None and outcome != "not applicable":
        outcome = "failed"
        message = f"expected to fail ({reason}), but does not. Remove it from `expected_failures`."
    return CheckResult(check.name, outcome, message, example, time.perf_counter() - start)


def _outcome(check: Check, subject: Subject, fast: bool, shrinks: bool) -> tuple[Outcome, str, Mapping[str, Any]]:
    binding = check.binds(subject)
    tokens = SHRINKING.set(binding and shrinks), FAST.set(fast)
    try:
        measured = check.function(subject)
    except NotApplicable as reason:
        return "not applicable", str(reason), {}
    except CheckFailure as failure:
        return "failed" if binding else "not held", str(failure), failure.example
    except GradhomogError as error:  # raised by a stage; the message names the plugin
        return "failed" if binding else "not held", f"{type(error).__name__}: {error}", {}
    except Exception as error:  # an error in one plugin must not stop the checks of the others
        return "failed" if binding else "not held", describe_error(error), {}
    finally:
        SHRINKING.reset(tokens[0])
        FAST.reset(tokens[1])
    if measured is not None:
        return "reported", measured, {}
    return ("passed", "", {}) if binding else ("held", f"not claimed: '{check.claim}' could be added to its traits", {})


def describe_error(error: BaseException) -> str:
    """Return the type and the first line of the message of an error."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_nonfinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_plain_data(value: Any) -> Any:
    """Convert to JSON values: tensors to nested lists, other objects to their repr without the memory address."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): to_plain_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain_data(item) for item in value]
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
