"""Search for the simplest input that violates a property, with Hypothesis; strategies for Jacobians and options."""

import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import hypothesis
import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

from gradhomog.registry.options import fits
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


class _Attempts:
    """Calls a function with drawn inputs, and keeps its last failure, which is simpler than those before."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function, self.runs = function, 0
        self.error: Exception | None = None
        self.example: dict[str, Any] = {}

    def run(self, drawn: Mapping[str, Any]) -> None:
        self.runs += self.error is not None
        if self.runs > SHRINK_LIMIT:
            raise _SearchLimitReached
        try:
            self.function(**drawn)
        except hypothesis.errors.HypothesisException:
            raise
        except Exception as error:
            self.error, self.example = error, {name: to_plain_data(value) for name, value in drawn.items()}
            raise

    def failure(self, flaky: bool) -> CheckFailure:
        """Return the last failure with its inputs."""
        assert self.error is not None
        if flaky:
            text = f"{describe_failure(self.error)}; a second run with the same input did not fail"
            return CheckFailure(text, **self.example)
        if not isinstance(self.error, CheckFailure):
            return CheckFailure(describe_failure(self.error), **self.example)
        self.error.example = {**self.example, **self.error.example}
        return self.error


def for_all(*, examples: int = 40, **inputs: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], None]:
    """Call the decorated function immediately with `examples` drawn inputs, a quarter as many in the fast mode.

    Raises:
        CheckFailure: the function raised; the failure holds the simplest failing inputs that were found.
    """

    def search(function: Callable[..., None]) -> None:
        attempts = _Attempts(function)

        def attempt(**drawn: Any) -> None:
            attempts.run(drawn)

        attempt.__name__ = attempt.__qualname__ = function.__name__
        phases = _PHASES if SHRINKING.get() else _PHASES[:1]
        count = full_or_fast(examples, max(1, examples // 4))
        try:
            search_settings = hypothesis.settings(_SETTINGS, max_examples=count, phases=phases)
            search_settings(hypothesis.seed(0)(hypothesis.given(**inputs)(attempt)))()
        except (Exception, _SearchLimitReached) as error:
            flaky = isinstance(error, hypothesis.errors.Flaky)
            if attempts.error is None or (isinstance(error, hypothesis.errors.HypothesisException) and not flaky):
                raise
            failure = attempts.failure(flaky)
            raise failure from (None if failure is attempts.error else attempts.error)

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


Range = int | tuple[int, int]
"""A number, or the smallest and the largest number that is drawn."""

# A byte indexes an entry: a multiple of 1/16 in (−6, 6], or zero for a quarter of the bytes. Bytes shrink towards 0, so
# whole numbers come first, the smallest before the others.
_SIXTEENTHS = sorted((k / 16 for k in range(-95, 97)), key=lambda x: (x.as_integer_ratio()[1], abs(x), x < 0))
_ENTRIES = torch.tensor(_SIXTEENTHS + [0.0] * 64, dtype=torch.float64)


@st.composite
def jacobians(
    draw: st.DrawFn, tasks: Range = (1, 6), params: Range = (1, 12), *, spread: float = 6, zero: bool = True,
    duplicate: bool = True, opposite: bool = True,
) -> Tensor:  # fmt: skip
    """Draw Jacobians, float64 `[tasks, params]`. They shrink towards few rows of small whole numbers.

    Args:
        tasks, params: number of rows and of columns.
        spread: ≥ 0. The ratio of the largest to the smallest nonzero norm is at most 10^spread.
        zero, duplicate, opposite: allow a row that is zero, equals another row, or is the negative of another row. Such
            rows are then drawn occasionally.

    >>> from hypothesis import given
    >>> @given(jacobians(tasks=3, params=(3, 8), zero=False))
    ... def test_every_row_has_a_length(jacobian):
    ...     assert (jacobian.norm(dim=1) > 0).all()
    >>> test_every_row_has_a_length()
    """
    kinds = ["free"] * 12 + ["zero"] * zero + ["duplicate"] * duplicate + ["opposite"] * opposite
    n, p = _draw_number(draw, tasks), _draw_number(draw, params)
    max_tasks, max_params = _maximum(tasks), _maximum(params)
    # Draw the maximal number of rows and entries and keep the last ones: lists shrink to zeros at the front.
    row = st.tuples(st.integers(0, int(10 * spread)), st.sampled_from(kinds), _vectors(max_params))
    tenths, row_kinds, vectors = zip(
        *draw(st.lists(row, min_size=max_tasks, max_size=max_tasks))[max_tasks - n :], strict=True
    )
    rows = torch.stack(vectors)[:, max_params - p :]
    rows = _limit_spread(rows * 10 ** (-torch.tensor(tenths, dtype=torch.float64) / 10)[:, None], spread)
    for index, kind in enumerate(row_kinds):
        if kind == "zero" or (kind != "free" and index > 0):  # the first row cannot copy an earlier one
            rows[index] = {"zero": 0.0, "duplicate": 1.0, "opposite": -1.0}[kind] * rows[0]
    assume(zero or bool(rows.any(dim=1).all()))
    assume(duplicate or not _has_equal_rows(rows, rows))
    assume(opposite or not _has_equal_rows(rows, -rows))
    return rows + 0.0  # no −0.0


def _draw_number(draw: st.DrawFn, bounds: Range) -> int:
    return bounds if isinstance(bounds, int) else draw(st.integers(*bounds))


def _maximum(bounds: Range) -> int:
    return bounds if isinstance(bounds, int) else bounds[1]


def _vectors(size: int) -> st.SearchStrategy[Tensor]:
    return st.binary(min_size=size, max_size=size).map(lambda drawn: _ENTRIES[list(drawn)])


def _limit_spread(rows: Tensor, spread: float) -> Tensor:
    """Scale short rows up, so that the ratio of any two nonzero norms is at most 10^spread."""
    norms = rows.norm(dim=1)
    least = norms.max() / 10**spread
    short = (norms > 0) & (norms < least)
    return rows * torch.where(short, least / torch.where(short, norms, 1.0), 1.0)[:, None]


def _has_equal_rows(rows: Tensor, others: Tensor) -> bool:
    """True if a nonzero row is equal to another row."""
    equal = (rows[:, None] == others[None]).all(dim=2) & rows.any(dim=1)[:, None]
    return bool(equal.fill_diagonal_(False).any())
