"""Checks of plugins: registration, execution, and the report of their results as data and as a printed table."""

import contextvars
import inspect
import json
import math
import re
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from gradhomog.errors import GradhomogError
from gradhomog.registry import Kind

Outcome = Literal["passed", "failed", "held", "not held", "expected", "not applicable"]
"""The result of a check.

`"passed"`, `"failed"`: a check required of every plugin or of a claimed trait. `"held"`, `"not held"`: a check of a
trait that is not claimed; neither is a failure. `"expected"`: a failure listed in `expected_failures`.
"""

MARKS = {"passed": "✓", "failed": "✗", "expected": "x", "held": "+", "not held": "·"}
WIDTH = 120


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


@dataclass(frozen=True)
class Check:
    """A check of one property of one kind of plugin.

    Attributes:
        name: the name used by `expected_failures`, `--only` and test ids.
        kind: the kind of plugin.
        claim: the trait that makes the check binding; None if it binds every plugin.
        function: called with the subject; raises `CheckFailure`.
    """

    name: str
    kind: Kind
    claim: str | None
    function: Callable[[Any], None] = field(repr=False)

    @property
    def summary(self) -> str:
        """The property in one sentence."""
        return self.explanation.partition("\n\n")[0].replace("\n", " ")

    @property
    def explanation(self) -> str:
        """The full description of the property, with its reason."""
        return inspect.getdoc(self.function) or ""

    def binds(self, subject: Any) -> bool:
        """True if the check is required of every plugin or the subject claims its trait."""
        return self.claim is None or self.claim in subject.claims


@dataclass(frozen=True)
class CheckResult:
    """The result of one check of one subject.

    Attributes:
        check: name of the check.
        outcome: see `Outcome`.
        message: the failure, or the reason why the check is not applicable.
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
        example = _map_floats(dict(self.example), lambda number: number if math.isfinite(number) else None)
        return {**vars(self), "example": example, "seconds": round(self.seconds, 3)}


@dataclass(frozen=True)
class CheckReport:
    """Results of all checks of one plugin.

    Attributes:
        subject: the plugin with its options, distribution and version.
        results: one per check, in order.
    """

    subject: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """True if no required check and no check of a claimed trait failed; expected failures are allowed."""
        return all(result.outcome != "failed" for result in self.results)

    def __iter__(self) -> Iterator[CheckResult]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, check: str) -> CheckResult:
        """The result of a check by name."""
        return {result.check: result for result in self.results}[check]

    def record(self) -> dict[str, Any]:
        """Return the report as a dict for JSON."""
        results = [result.record() for result in self.results]
        return {"subject": self.subject, "passed": self.passed, "results": results}

    def __str__(self) -> str:
        width = max((len(result.check) for result in self.results), default=0)
        wrapper = textwrap.TextWrapper(
            WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_long_words=False
        )  # fmt: skip
        lines = [self.subject, ""]
        for result in self.results:
            lines.append(f"  {MARKS.get(result.outcome, '-')} {result.check:<{width}}  {result.outcome}".rstrip())
            lines += wrapper.wrap(result.message)
            rounded = _map_floats(dict(result.example), lambda number: float(f"{number:.4g}"))
            lines += [f"      {name} = {json.dumps(value)}" for name, value in rounded.items()]
        counts = Counter(result.outcome for result in self.results)
        summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        return "\n".join([*lines, "", f"{summary}; {sum(result.seconds for result in self.results):.1f} s"])


KIT: dict[Kind, dict[str, Check]] = {"homogenizers": {}, "learners": {}}
"""All checks by kind and name, filled by the decorator `check`."""

SHRINKING: ContextVar[bool] = ContextVar("shrinking", default=True)
"""True if failing inputs are simplified. Only failures of binding checks are."""

FAST: ContextVar[bool] = ContextVar("fast", default=False)
"""True if checks run with fewer examples and steps, for the development loop."""


def check(*kinds: Kind, claim: str | None = None) -> Callable[[Callable[[Any], None]], Check]:
    """Register a function as a check of some kinds of plugins."""

    def register(function: Callable[[Any], None]) -> Check:
        for kind in kinds:
            registered = KIT[kind][function.__name__] = Check(function.__name__, kind, claim, function)
        return registered

    return register


def full_or_fast(full: int, fast: int) -> int:
    """Return `fast` in the fast mode, else `full`."""
    return fast if FAST.get() else full


def run(check: Check, subject: Any, reason: str | None = None, *, fast: bool = False) -> CheckResult:
    """Run one check. A `reason` marks it as an expected failure."""

    def outcome_in_mode() -> tuple[Outcome, str, Mapping[str, Any]]:
        SHRINKING.set(check.binds(subject) and reason is None)
        FAST.set(fast)
        return _outcome(check, subject)

    start = time.perf_counter()
    outcome, message, example = contextvars.copy_context().run(outcome_in_mode)
    if reason is not None and outcome == "failed":
        outcome, message = "expected", f"{reason} ({message})"
    elif reason is not None and outcome in ("held", "not held"):
        outcome, message = "failed", f"'{check.claim}' is not claimed. Remove it from `expected_failures`."
    elif reason is not None and outcome != "not applicable":
        outcome = "failed"
        message = f"expected to fail ({reason}), but does not. Remove it from `expected_failures`."
    return CheckResult(check.name, outcome, message, example, time.perf_counter() - start)


def _outcome(check: Check, subject: Any) -> tuple[Outcome, str, Mapping[str, Any]]:
    binding = check.binds(subject)
    try:
        check.function(subject)
    except NotApplicable as reason:
        return "not applicable", str(reason), {}
    except Exception as error:  # an error in one plugin must not stop the checks of the others
        example = error.example if isinstance(error, CheckFailure) else {}
        return "failed" if binding else "not held", describe_failure(error), example
    return ("passed", "", {}) if binding else ("held", f"not claimed: '{check.claim}' could be added to its traits", {})


def describe_failure(error: BaseException) -> str:
    """Return the message of a failed check or of a gradhomog error in full, of another error its first line."""
    if isinstance(error, CheckFailure):
        return str(error)
    message = str(error) if isinstance(error, GradhomogError) else str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {message}"


def _map_floats(value: Any, convert: Callable[[float], float | None]) -> Any:
    """Convert all floats in nested lists and dicts."""
    if isinstance(value, Mapping):
        return {key: _map_floats(item, convert) for key, item in value.items()}
    if isinstance(value, list):
        return [_map_floats(item, convert) for item in value]
    return convert(value) if isinstance(value, float) else value


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
