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


def for_all(*, examples: int = 40, **inputs: SearchStrategy[Any]) -> Callable[[Callable[..., None]], None]:
    """Call the decorated function with many drawn inputs, at once.

    Raises:
        CheckFailure: it raised with some; the failure holds the simplest inputs that were found.
    """

    def search(function: Callable[..., None]) -> None:
        failing: dict[str, Any] = {}

        def attempt(**drawn: Any) -> None:
            try:
                function(**drawn)
            except hypothesis.errors.HypothesisException:
                raise
            except BaseException:
                failing.clear()
                failing.update({name: plain(value) for name, value in drawn.items()})
                raise

        attempt.__name__ = attempt.__qualname__ = function.__name__
        phases = [phase for phase in hypothesis.Phase if SHRINKING.get() or phase is not hypothesis.Phase.shrink]
        trial = hypothesis.settings(_SETTINGS, max_examples=examples, phases=phases)(
            hypothesis.given(**inputs)(attempt)
        )
        try:
            trial()
        except CheckFailure as failure:
            failure.example = {**failing, **failure.example}
            raise
        except hypothesis.errors.HypothesisException:
            raise
        except GradhomogError as error:
            raise CheckFailure(f"{type(error).__name__}: {error}", **failing) from error
        except Exception as error:
            raise CheckFailure(f"raised {type(error).__name__}: {error}", **failing) from error

    return search
