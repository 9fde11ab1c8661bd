"""The kit as pytest tests: one per plugin and check that binds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pytest

from gradhomog import expression
from gradhomog.errors import GradhomogError, OptionError
from gradhomog.registry import Kind
from gradhomog.testing.checking import Check, CheckFailure, Subject, run
from gradhomog.testing.kits import selected, subject, valid_expectations

Test = TypeVar("Test", bound=Callable[..., Any])


class BoundCheck:
    """A check of one plugin; called, it raises if the plugin fails it, as it may be `expected` to."""

    def __init__(self, check: Check, made: Subject, expected: bool, fast: bool) -> None:
        self.check, self.made, self.expected, self.fast = check, made, expected, fast

    def __call__(self) -> None:
        __tracebackhide__ = True
        result = run(self.check, self.made, fast=self.fast)
        if result.outcome == "not applicable":
            if self.expected:  # it may apply on another machine, so this refutes no reason
                pytest.xfail(f"not applicable: {result.message}")
            return
        if result.outcome == "failed":
            example = "".join(f"\n{name} = {value}" for name, value in result.example.items())
            raise CheckFailure(f"{self.made}: {result.check}: {result.message}{example}\n{self.check.explanation}")


class Unusable:
    """Replaces all checks of a plugin that cannot be made: fails with the reason."""

    def __init__(self, error: GradhomogError) -> None:
        self.error = error

    def __call__(self) -> None:
        raise self.error


def parametrize_with_checks(
    what: Iterable[Any],
    *,
    expected_failures: Mapping[str, str] | None = None,
    kind: Kind = "homogenizers",
    only: str | Sequence[str] | None = None,
    fast: bool = False,
) -> Callable[[Test], Test]:
    """Turn a test function with the argument `check` into one test per plugin and check.

    Checks that bind every plugin and those of claimed traits; `gradhomog check` reports the other traits.

    Args:
        what: as for `check_homogenizer` (or `check_learner`, `check_domain`), several.
        expected_failures: why a check fails, by its name: such a test is an expected failure; if it passes, it fails.
        kind: of plugins.
        only: a glob pattern over the checks' names, or several.
        fast: fewer examples, steps and learners, for the development loop.

    >>> @parametrize_with_checks(["static", "pcgrad"], only="identical_*")
    ... def test_it_conforms(check):
    ...     check()
    """
    if isinstance(what, str):
        raise OptionError(f"`what` must be several plugins; got the text {what!r}. Write [{what!r}].")
    chosen, expected = selected(kind, only), valid_expectations(kind, expected_failures)
    cases = []
    for one in what:
        label = _label(one)
        try:
            made = subject(kind, one)
        except GradhomogError as error:
            cases.append(pytest.param(Unusable(error), id=f"{label}-loads"))
            continue
        for check in chosen:
            if check.binds(made):
                reason = expected.get(check.name)
                marks = [pytest.mark.xfail(reason=reason, raises=CheckFailure, strict=True)] if reason else []
                bound = BoundCheck(check, made, bool(reason), fast)
                cases.append(pytest.param(bound, id=f"{label}-{check.name}", marks=marks))
    return pytest.mark.parametrize("check", cases)


def _label(what: Any) -> str:
    match what:
        case str():
            return what
        case (str(name), Mapping() as options):
            return expression.render([(name, dict(options))])
    return getattr(getattr(what, "factory", None), "__name__", "plugin")  # anything else fails when it is made
