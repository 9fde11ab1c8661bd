"""Report of all check results of one plugin: as data and as a printed table."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gradhomog.testing.check import CheckResult

MARKS = {"passed": "✓", "failed": "✗", "expected": "x", "held": "+", "not held": "·", "reported": "i"}
WIDTH = 120


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
        for result in self.results:
            if result.check == check:
                return result
        raise KeyError(check)

    def record(self) -> dict[str, Any]:
        """Return the report as a dict for JSON."""
        return {
            "subject": self.subject,
            "passed": self.passed,
            "results": [result.record() for result in self.results],
        }

    def __str__(self) -> str:
        counts = Counter(result.outcome for result in self.results)
        width = max((len(result.check) for result in self.results), default=0)
        lines = [self.subject, ""]
        for result in self.results:
            lines.append(f"  {MARKS.get(result.outcome, '-')} {result.check:<{width}}  {result.outcome}".rstrip())
            if result.message:
                lines += textwrap.wrap(
                    result.message, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_long_words=False
                )
            lines += [f"      {name} = {json.dumps(_rounded(value))}" for name, value in result.example.items()]
        total = sum(result.seconds for result in self.results)
        summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        return "\n".join([*lines, "", f"{summary}; {total:.1f} s"])


def _rounded(value: Any) -> Any:
    """Nested lists and dicts with numbers of four significant digits; `record` has all digits."""
    if isinstance(value, Mapping):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
