"""Search for an input that breaks a property, and the simplest one: hypothesis, run from within a check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis.strategies import SearchStrategy

from gradhomog.errors import GradhomogError
from gradhomog.testing.checking import SHRINKING, CheckFailure, plain

# The same verdict everywhere: neither a database of earlier failures nor the profile of the suite that runs the kit has
# a say. Checks call this within tests of others, whose health checks are their own affair.
_SETTINGS = hypothesis.settings(
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    print_blob=False,
    verbosity=hypothesis.Verbosity.quiet,
    suppress_health_check=list(hypothesis.HealthCheck),
)
# Nothing is known of earlier runs, and nobody reads which part of an input may vary (the dearest phase by far).
_PHASES = (hypothesis.Phase.generate, hypothesis.Phase.shrink)
# Runs after the first failure: an example that is not the simplest is worth more than one that is waited for.
SIMPLIFYING = 1000


class _Enough(BaseException):
    """Ends a search at once: hypothesis passes on what is no Exception."""


def for_all(*, examples: int = 40, **inputs: SearchStrategy[Any]) -> Callable[[Callable[..., None]], None]:
    """Call the decorated function with many drawn inputs, at once.

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
        trial = hypothesis.settings(_SETTINGS, max_examples=examples, phases=phases)(
            hypothesis.given(**inputs)(attempt)
        )
        try:
            trial()
        except hypothesis.errors.Flaky:
            error, example = found[0]
            raise CheckFailure(f"{_told(error)}; and the next time, with the same input, not", **example) from error
        except hypothesis.errors.HypothesisException:
            raise
        except (Exception, _Enough) as end:
            if not found:
                raise
            error, example = found[0]
            if isinstance(error, CheckFailure):
                error.example = {**example, **error.example}
                raise error from None
            raise CheckFailure(_told(error), **example) from (error if isinstance(end, _Enough) else end)

    return search


def _told(error: Exception) -> str:
    if isinstance(error, CheckFailure):
        return str(error)
    raised = "" if isinstance(error, GradhomogError) else "raised "
    return f"{raised}{type(error).__name__}: {error}"
