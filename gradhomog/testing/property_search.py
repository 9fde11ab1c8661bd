"""Search for the simplest input that violates a property, with Hypothesis; and a strategy for values of options."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

import hypothesis
from hypothesis import strategies as st

from gradhomog.registry.annotated_values import fits
from gradhomog.testing.check_results import SHRINKING, CheckFailure, describe_failure, full_or_fast, to_plain_data

# The result must not depend on a database of earlier failures nor on the hypothesis profile of the test suite that runs
# the kit. Checks run inside the tests of that suite, so hypothesis's health checks do not apply.
_SETTINGS = hypothesis.settings(
    deadline=None, derandomize=True, database=None, report_multiple_bugs=False, print_blob=False,
    verbosity=hypothesis.Verbosity.quiet, suppress_health_check=list(hypothesis.HealthCheck),
)  # fmt: skip
# Without the phases `reuse` (there is no database) and `explain` (by far the slowest; its output is not printed).
_PHASES = (hypothesis.Phase.generate, hypothesis.Phase.shrink)
SHRINK_LIMIT = 300  # runs after the first failure; limits the time of shrinking, at the price of a larger example


class _SearchLimitReached(BaseException):
    """Stops a search immediately: hypothesis does not catch a BaseException."""


def for_all(*, examples: int = 40, **inputs: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], None]:
    """Call the decorated function immediately with `examples` drawn inputs, a quarter as many in the fast mode.

    Raises:
        CheckFailure: the function raised; the failure holds the simplest failing inputs that were found.
    """

    def search(function: Callable[..., None]) -> None:
        last_failure: list[tuple[Exception, dict[str, Any]]] = []  # each failure is simpler than the one before
        runs = 0

        def attempt(**drawn: Any) -> None:
            nonlocal runs
            runs += bool(last_failure)
            if runs > SHRINK_LIMIT:
                raise _SearchLimitReached
            try:
                function(**drawn)
            except hypothesis.errors.HypothesisException:
                raise
            except Exception as error:
                last_failure[:] = [(error, {name: to_plain_data(value) for name, value in drawn.items()})]
                raise

        attempt.__name__ = attempt.__qualname__ = function.__name__
        phases = _PHASES if SHRINKING.get() else _PHASES[:1]
        count = full_or_fast(examples, max(1, examples // 4))
        try:
            hypothesis.settings(_SETTINGS, max_examples=count, phases=phases)(hypothesis.given(**inputs)(attempt))()
        except hypothesis.errors.Flaky:
            error, example = last_failure[0]
            text = f"{describe_failure(error)}; a second run with the same input did not fail"
            raise CheckFailure(text, **example) from error
        except hypothesis.errors.HypothesisException:
            raise
        except (Exception, _SearchLimitReached):
            if not last_failure:
                raise
            error, example = last_failure[0]
            if isinstance(error, CheckFailure):
                error.example = {**example, **error.example}
                raise error from None
            raise CheckFailure(describe_failure(error), **example) from error

    return search


LARGEST_INTEGER = 20  # an integer may be a number of iterations, which take time
SMALLEST, LARGEST = 1e-3, 1e3  # bounds of nonzero numbers: beyond them exponentials and quotients may overflow


def values_of(annotation: Any) -> st.SearchStrategy[Any] | None:
    """Return a strategy for an annotation of numbers, booleans, `Literal`s, or a union of these and None; else None."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        strategies = [values_of(argument) for argument in arguments]
        return None if None in strategies else st.one_of(*[strategy for strategy in strategies if strategy is not None])
    base = arguments[0] if origin is Annotated else annotation
    if annotation in (bool, type(None)) or origin is Literal:
        return st.from_type(annotation)
    if base not in (int, float):
        return None

    def usable(value: float) -> bool:
        within = abs(value) <= LARGEST_INTEGER if base is int else value == 0 or SMALLEST <= abs(value) <= LARGEST
        return within and fits(value, annotation)

    return st.from_type(annotation).filter(usable)
