"""The conformance kit: all checks of a kind, run on one plugin."""

from __future__ import annotations

import difflib
import fnmatch
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import hypothesis  # noqa: F401  # the checks need it: `gradhomog.testing` reports how to install it

from gradhomog.errors import OptionError
from gradhomog.registry import Kind, Registry
from gradhomog.specs import HomogenizerSpec
from gradhomog.testing.checking import KIT, Check, run
from gradhomog.testing.plugin_subject import PluginSubject
from gradhomog.testing.report import CheckReport

# In the order in which the checks are run and shown.
MODULES: dict[Kind, tuple[str, ...]] = {
    "homogenizers": (
        "declarations", "homogenizers.directions", "homogenizers.side_effects", "homogenizers.encoder",
        "homogenizers.derivatives", "homogenizers.state", "training_state", "homogenizers.cost",
    ),
    "learners": (
        "declarations", "learners.rows", "learners.stages", "learners.steps", "learners.side_effects",
        "learners.evaluation", "learners.networks", "training_state", "learners.cost",
    ),
    "domains": ("declarations", "domains.tasks", "domains.randomness", "domains.splits", "domains.variants"),
}  # fmt: skip


def checks(kind: Kind = "homogenizers") -> tuple[Check, ...]:
    """All checks of a kind of plugin, in order."""
    if kind not in MODULES:
        raise OptionError(f"`kind` must be one of {', '.join(map(repr, MODULES))}; got {kind!r}.")
    modules = [f"gradhomog.testing.{module}" for module in MODULES[kind]]
    for module in modules:
        importlib.import_module(module)
    place = {module: index for index, module in enumerate(modules)}
    return tuple(sorted(KIT[kind].values(), key=lambda check: place.get(check.function.__module__, len(place))))


def subject(kind: Kind, what: Any, registry: Registry | None = None) -> PluginSubject[Any]:
    """The plugin as the checks of its kind receive it."""
    module = importlib.import_module(f"gradhomog.testing.{kind}.subject")
    made: PluginSubject[Any] = getattr(module, f"{kind[:-1].capitalize()}Subject")(what, registry)
    return made


def check_homogenizer(
    what: str | tuple[str, Mapping[str, Any]] | HomogenizerSpec,
    *,
    expected_failures: Mapping[str, str] | None = None,
    registry: Registry | None = None,
    only: str | Sequence[str] | None = None,
    fast: bool = False,
) -> CheckReport:
    """Run the conformance kit on a homogenizer.

    Args:
        what: a name, with options as in a pipeline's text (`"static(weights=[1, 2])"`) or beside it (`("static",
            {"weights": [1, 2]})`); or a `HomogenizerSpec` without a distribution.
        expected_failures: check names and the reasons why they fail. A check listed here must fail.
        registry: where the name is looked up; by default the installed distributions.
        only: a glob pattern over the checks' names, or several.
        fast: fewer examples, steps and learners, for the development loop.

    Raises:
        UnknownPluginError, PluginLoadError, OptionError: the plugin cannot be made, or no check has a given name.

    Cost: some seconds.

    >>> report = check_homogenizer("static", only="*equivariant")
    >>> [(result.check, result.outcome) for result in report][1:]
    [('scale_equivariant', 'passed'), ('rotation_equivariant', 'passed')]
    >>> report.passed
    True
    """
    return _check("homogenizers", what, expected_failures, registry, only, fast)


def check_learner(
    what: Any,
    *,
    expected_failures: Mapping[str, str] | None = None,
    registry: Registry | None = None,
    only: str | Sequence[str] | None = None,
    fast: bool = False,
) -> CheckReport:
    """Run the conformance kit on a learner, by name or `LearnerSpec`; otherwise as `check_homogenizer`."""
    return _check("learners", what, expected_failures, registry, only, fast)


def check_domain(
    what: Any,
    *,
    expected_failures: Mapping[str, str] | None = None,
    registry: Registry | None = None,
    only: str | Sequence[str] | None = None,
    fast: bool = False,
) -> CheckReport:
    """Run the conformance kit on a domain, by text (`"glyphs:greek"`) or `DomainSpec`; else as `check_homogenizer`."""
    return _check("domains", what, expected_failures, registry, only, fast)


def _check(
    kind: Kind, what: Any, expected: Mapping[str, str] | None, registry: Registry | None,
    only: str | Sequence[str] | None, fast: bool,
) -> CheckReport:  # fmt: skip
    chosen, expected = selected(kind, only), valid_expectations(kind, expected)
    made = subject(kind, what, registry)
    return CheckReport(str(made), tuple(run(check, made, expected.get(check.name), fast=fast) for check in chosen))


def selected(kind: Kind, only: str | Sequence[str] | None) -> tuple[Check, ...]:
    """The checks whose names match one of some glob patterns; all, without patterns."""
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
            raise OptionError(f"`expected_failures` must give the reason why {name} fails, in a text; got {reason!r}.")
    return expected or {}


def _names(kind: Kind) -> str:
    return ", ".join(check.name for check in checks(kind))
