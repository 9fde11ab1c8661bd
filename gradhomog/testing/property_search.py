"""Search for an input that breaks a property, and the simplest one: hypothesis, run from within a check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis.strategies import SearchStrategy

from gradhomog.errors import GradhomogError
from gradhomog.testing.checking import SHRINKING, CheckFailure, full_or_fast, plain

# The same verdict everywhere: independent of a database of earlier failures and of the profile of the suite that runs
# the kit. Checks call this within tests of other suites, whose health checks do not apply here.
_SETTINGS = hypothesis.settings(
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    print_blob=False,
    verbosity=hypothesis.Verbosity.quiet,
    suppress_health_check=list(hypothesis.HealthCheck),
)
# Without `reuse` (no database) and `explain` (by far the most expensive phase; its output is not shown).
_PHASES = (hypothesis.Phase.generate, hypothesis.Phase.shrink)
SIMPLIFYING = 300  # runs after the first failure: a usable example now is better than the simplest one later


class _Enough(BaseException):
    """Ends a search at once: hypothesis does not catch it."""


def for_all(*, examples: int = 40, **inputs: SearchStrategy[Any]) -> Callable[[Callable[..., None]], None]:
    """Call the decorated function at once with many drawn inputs; in the fast mode with a quarter as many.

    Raises:
        CheckFailure: it raised with some; the failure holds the simplest inputs that were found.
    """

    def search(function: Callable[..., None]) -> None:
        found: list[tuple[Exception, dict[str, Any]]] = []  # the last failure: simpler than those before
        runs = 0

        def attempt(**drawn: Any) -> None:
            nonlocal runs
            runs += bool(found)
            if runs > SIMPLIFYING:
                raise _Enough
            try:
                function(**drawn)
            except hypothesis.errors.HypothesisException:
                raise
            except Exception as error:
                found[:] = [(error, {name: plain(value) for name, value in drawn.items()})]
                raise

        attempt.__name__ = attempt.__qualname__ = function.__name__
        phases = _PHASES if SHRINKING.get() else _PHASES[:1]
        count = full_or_fast(examples, max(1, examples // 4))
        try:
            hypothesis.settings(_SETTINGS, max_examples=count, phases=phases)(hypothesis.given(**inputs)(attempt))()
        except hypothesis.errors.Flaky:
            error, example = found[0]
            raise CheckFailure(
                f"{_describe(error)}; with the same input it did not fail the next time", **example
            ) from error
        except hypothesis.errors.HypothesisException:
            raise
        except (Exception, _Enough) as end:
            if not found:
                raise
            error, example = found[0]
            if isinstance(error, CheckFailure):
                error.example = {**example, **error.example}
                raise error from None
            raise CheckFailure(_describe(error), **example) from (error if isinstance(end, _Enough) else end)

    return search


def _describe(error: Exception) -> str:
    if isinstance(error, CheckFailure):
        return str(error)
    raised = "" if isinstance(error, GradhomogError) else "raised "
    return f"{raised}{type(error).__name__}: {error}"
