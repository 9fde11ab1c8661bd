"""Run the conformance kit: all checks of a kind on one plugin."""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from gradhomog.errors import OptionError, did_you_mean
from gradhomog.registry import Kind, Registry
from gradhomog.registry.specs import HomogenizerSpec
from gradhomog.testing import declarations, homogenizers, learners, training_runs
from gradhomog.testing.check_results import KIT, Check, CheckReport, run
from gradhomog.testing.subjects import HomogenizerSubject, LearnerSubject, PluginSubject

# The checks run and are printed in this order.
MODULES = tuple(module.__name__ for module in (declarations, homogenizers, learners, training_runs))
SUBJECTS: dict[Kind, type[PluginSubject[Any]]] = {"homogenizers": HomogenizerSubject, "learners": LearnerSubject}
Patterns = str | Sequence[str]
"""A glob pattern of names of checks, or several."""


def checks(kind: Kind = "homogenizers") -> tuple[Check, ...]:
    """Return all checks of a kind of plugin, in the order in which they run."""
    if kind not in KIT:
        raise OptionError(f"`kind` must be one of {', '.join(map(repr, KIT))}; got {kind!r}.")
    return tuple(sorted(KIT[kind].values(), key=lambda check: MODULES.index(check.function.__module__)))


def check_homogenizer(
    plugin: str | tuple[str, Mapping[str, Any]] | HomogenizerSpec, *,
    expected_failures: Mapping[str, str] | None = None, registry: Registry | None = None, only: Patterns | None = None,
    fast: bool = False,
) -> CheckReport:  # fmt: skip
    """Run the conformance kit on a homogenizer.

    Args:
        plugin: a name, with options as in a pipeline's text (`"static(weights=[1, 2])"`) or as a pair (`("static",
            {"weights": [1, 2]})`); or a `HomogenizerSpec` without a distribution.
        expected_failures: reasons by check name. Each check listed here must fail.
        registry: the registry that contains the plugin; by default that of the installed distributions.
        only: a glob pattern or several; only checks with matching names run.
        fast: run fewer examples, steps and learners, for the development loop.

    Raises:
        UnknownPluginError, PluginLoadError, OptionError: the plugin cannot be made, or a check does not exist.

    Cost: a few seconds.

    >>> report = check_homogenizer("static", only="*equivariant")
    >>> [(result.check, result.outcome) for result in report][1:]
    [('scale_equivariant', 'passed'), ('rotation_equivariant', 'passed')]
    >>> report.passed
    True
    """
    return _check("homogenizers", plugin, expected_failures, registry, only, fast)


def check_learner(
    plugin: Any, *, expected_failures: Mapping[str, str] | None = None, registry: Registry | None = None,
    only: Patterns | None = None, fast: bool = False,
) -> CheckReport:  # fmt: skip
    """Run the conformance kit on a learner: a name or a `LearnerSpec`. Other arguments as for `check_homogenizer`."""
    return _check("learners", plugin, expected_failures, registry, only, fast)


def _check(
    kind: Kind, plugin: Any, expected: Mapping[str, str] | None, registry: Registry | None,
    only: Patterns | None, fast: bool,
) -> CheckReport:  # fmt: skip
    chosen, expected = select_checks(kind, only), validate_expected_failures(kind, expected)
    subject = SUBJECTS[kind](plugin, registry)
    results = [run(check, subject, expected.get(check.name), fast=fast) for check in chosen]
    return CheckReport(str(subject), tuple(results))


def select_checks(kind: Kind, only: Patterns | None) -> tuple[Check, ...]:
    """Return the checks whose names match at least one glob pattern; all checks if `only` is None."""
    patterns = ["*"] if only is None else [only] if isinstance(only, str) else list(only)
    found = tuple(check for check in checks(kind) if any(fnmatch.fnmatchcase(check.name, p) for p in patterns))
    if not found:
        raise OptionError(f"`only` must match the name of a check; {only!r} matches none of: {_names(kind)}.")
    return found


def validate_expected_failures(kind: Kind, expected: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the expected failures; raise if a check does not exist or has no reason."""
    names = {check.name for check in checks(kind)}
    for name, reason in (expected or {}).items():
        if name not in names:
            hint = did_you_mean(name, names) or f" The checks: {_names(kind)}."
            raise OptionError(f"`expected_failures` names the check {name!r}, which does not exist.{hint}")
        if not isinstance(reason, str) or not reason.strip():
            raise OptionError(
                f"`expected_failures` must give the reason why {name} fails, as a string; got {reason!r}."
            )
    return expected or {}


def _names(kind: Kind) -> str:
    return ", ".join(check.name for check in checks(kind))
