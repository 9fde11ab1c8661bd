"""Run the kit: all checks of a kind on one plugin."""

from __future__ import annotations

import difflib
import fnmatch
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hypothesis  # noqa: F401  # the checks need it: `gradhomog.testing` says how to get it where it is missing

from gradhomog.errors import OptionError
from gradhomog.registry import KINDS, Kind, Registry
from gradhomog.specs import HomogenizerSpec
from gradhomog.testing.checking import KIT, Check, CheckResult, Subject, run
from gradhomog.testing.report import CheckReport

# In the order in which the checks are run and shown.
MODULES: dict[Kind, tuple[str, ...]] = {
    "homogenizers": (
        "declared", "output", "purity", "agreement", "equivariance", "before_rows", "derivatives", "state", "cost",
    ),
    "learners": (
        "declared", "served", "rows", "derivatives", "protocol", "steps", "untouched", "meta_test", "state",
        "networks", "cost",
    ),
    "domains": ("declared", "attributes", "tasks", "randomness", "splits", "limits", "variants", "cost"),
}  # fmt: skip


def checks(kind: Kind = "homogenizers") -> tuple[Check, ...]:
    """All checks of a kind of plugin, in order."""
    if kind not in KINDS:
        raise OptionError(f"`kind` must be one of {', '.join(map(repr, KINDS))}; got {kind!r}.")
    for module in MODULES[kind]:
        importlib.import_module(f"gradhomog.testing.{kind}.{module}")
    return tuple(KIT[kind].values())


def subject(kind: Kind, what: Any, registry: Registry | None = None) -> Subject:
    """What the checks of a kind are called with."""
    module = importlib.import_module(f"gradhomog.testing.{kind}.subject")
    make: Callable[..., Subject] = getattr(module, f"{kind[:-1].capitalize()}Subject")
    return make(what, registry)


def check_homogenizer(
    what: str | tuple[str, Mapping[str, Any]] | HomogenizerSpec,
    *,
    expected_failures: Mapping[str, str] | None = None,
    registry: Registry | None = None,
    only: str | Sequence[str] | None = None,
) -> CheckReport:
    """Run the conformance kit on a homogenizer.

    Args:
        what: a name, with options as in a pipeline's text (`"static(weights=[1, 2])"`) or beside it (`("static",
            {"weights": [1, 2]})`); or a `HomogenizerSpec` that no distribution offers yet.
        expected_failures: why it does not keep a check, by the check's name. One that does not fail is a failure.
        registry: where the name is looked up; by default among the installed distributions.
        only: a glob pattern over the checks' names, or several.

    Raises:
        UnknownPluginError, PluginLoadError, OptionError: it cannot be made, or a check is called otherwise.

    Cost: some seconds.

    >>> report = check_homogenizer("static", only="*equivariant")
    >>> [(result.check, result.outcome) for result in report][1:]
    [('scale_equivariant', 'passed'), ('rotation_equivariant', 'passed')]
    >>> report.passed
    True
    """
    return _check("homogenizers", what, expected_failures, registry, only)


def check_learner(
    what: Any,
    *,
    expected_failures: Mapping[str, str] | None = None,
    registry: Registry | None = None,
    only: str | Sequence[str] | None = None,
) -> CheckReport:
    """Run the conformance kit on a learner, by name or `LearnerSpec`; otherwise as `check_homogenizer`."""
    return _check("learners", what, expected_failures, registry, only)


def check_domain(
    what: Any,
    *,
    expected_failures: Mapping[str, str] | None = None,
    registry: Registry | None = None,
    only: str | Sequence[str] | None = None,
) -> CheckReport:
    """Run the conformance kit on a domain, by text (`"glyphs:greek"`) or `DomainSpec`; else as `check_homogenizer`."""
    return _check("domains", what, expected_failures, registry, only)


def _check(
    kind: Kind,
    what: Any,
    expected: Mapping[str, str] | None,
    registry: Registry | None,
    only: str | Sequence[str] | None,
) -> CheckReport:
    chosen, expected = selected(kind, only), valid_expectations(kind, expected)
    made = subject(kind, what, registry)
    results: list[CheckResult] = [run(check, made, expected.get(check.name)) for check in chosen]
    return CheckReport(str(made), tuple(results))


def selected(kind: Kind, only: str | Sequence[str] | None) -> tuple[Check, ...]:
    """The checks whose names one of some glob patterns matches; all, if there is none."""
    patterns = ["*"] if only is None else [only] if isinstance(only, str) else list(only)
    found = tuple(check for check in checks(kind) if any(fnmatch.fnmatchcase(check.name, p) for p in patterns))
    if not found:
        raise OptionError(f"`only` must match the name of a check; {only!r} matches none of: {_names(kind)}.")
    return found


def valid_expectations(kind: Kind, expected: Mapping[str, str] | None) -> Mapping[str, str]:
    """Expected failures, each of a check that exists, with a reason."""
    known = {check.name for check in checks(kind)}
    for name, reason in (expected or {}).items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else f" The checks: {_names(kind)}."
            raise OptionError(f"`expected_failures` names the check {name!r}, which does not exist.{hint}")
        if not isinstance(reason, str) or not reason.strip():
            raise OptionError(f"`expected_failures` must say why {name} fails, in a text; got {reason!r}.")
    return expected or {}


def _names(kind: Kind) -> str:
    return ", ".join(check.name for check in checks(kind))
