"""The conformance kit as pytest tests: one per plugin and binding check."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import pytest

from gradhomog.errors import OptionError
from gradhomog.registry import Kind, expression
from gradhomog.testing.check_results import Check, CheckFailure, run
from gradhomog.testing.kits import SUBJECTS, Patterns, select_checks, validate_expected_failures
from gradhomog.testing.subjects import PluginSubject

Test = TypeVar("Test", bound=Callable[..., Any])


def _run_bound(check: Check, subject: PluginSubject[Any], expected: bool, fast: bool) -> None:
    """Raise if a check fails. `expected`: an expected failure."""
    __tracebackhide__ = True
    result = run(check, subject, fast=fast)
    if result.outcome == "not applicable" and expected:  # it may apply on another machine: the expected failure stays
        pytest.xfail(f"not applicable: {result.message}")
    if result.outcome == "failed":
        example = "".join(f"\n{name} = {value}" for name, value in result.example.items())
        raise CheckFailure(f"{subject}: {result.check}: {result.message}{example}\n{check.explanation}")


def _raise(error: Exception) -> None:
    """Replaces all checks of a plugin that cannot be made: raises the error of its construction."""
    raise error


def parametrize_with_checks(
    plugins: Iterable[Any], *, expected_failures: Mapping[str, str] | None = None, kind: Kind = "homogenizers",
    only: Patterns | None = None, fast: bool = False,
) -> Callable[[Test], Test]:  # fmt: skip
    """Parametrize a test function with the argument `check`: one test per plugin and check.

    Includes the checks that bind every plugin and those of claimed traits. `gradhomog check` also reports traits that
    are not claimed.

    Args:
        plugins: plugins, each as for `check_homogenizer` (or `check_learner`).
        expected_failures: reasons by check name. These tests are strict expected failures: one that passes is an error.
        kind: the kind of the plugins.
        only: a glob pattern or several; only checks with matching names become tests.
        fast: run fewer examples, steps and learners, for the development loop.

    >>> @parametrize_with_checks(["static", "pcgrad"], only="identical_*")
    ... def test_it_conforms(check):
    ...     check()
    """
    if isinstance(plugins, str):
        raise OptionError(f"`plugins` must be a sequence of plugins; got the string {plugins!r}. Write [{plugins!r}].")
    chosen, expected = select_checks(kind, only), validate_expected_failures(kind, expected_failures)
    cases = []
    for plugin in plugins:
        label = _label(plugin)
        try:
            subject = SUBJECTS[kind](plugin)
        except Exception as error:
            cases.append(pytest.param(partial(_raise, error), id=f"{label}-loads"))
            continue
        for check in chosen:
            if check.binds(subject):
                reason = expected.get(check.name)
                marks = [pytest.mark.xfail(reason=reason, raises=CheckFailure, strict=True)] if reason else []
                bound = partial(_run_bound, check, subject, bool(reason), fast)
                cases.append(pytest.param(bound, id=f"{label}-{check.name}", marks=marks))
    return pytest.mark.parametrize("check", cases)


def _label(plugin: Any) -> str:
    match plugin:
        case str():
            return plugin
        case (str(name), Mapping() as options):
            return expression.render([(name, dict(options))])
    # Any other object raises when it is made.
    return getattr(getattr(plugin, "factory", None), "__name__", "plugin")
