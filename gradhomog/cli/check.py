"""`gradhomog check NAME`: run the conformance kit on one or more plugins.

The kit has the checks that every plugin of a kind must pass, and the checks of the traits that the plugin claims.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradhomog.cli._output import add_json, print_json
from gradhomog.cli.completion import complete_plugin_names
from gradhomog.errors import GradhomogError, OptionError, join_errors

if TYPE_CHECKING:
    from gradhomog.registry import Kind

CHECKABLE_KINDS: tuple[Kind, ...] = ("homogenizers", "learners")
"""The kinds of plugins that the conformance kit has checks for."""


SUMMARY = "check that plugins have the required and claimed properties"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = "Exit codes: 0 no required check failed; 1 a required check failed; 2 invalid input."
    names = command.add_argument(
        "names", nargs="+", metavar="NAME", help='a plugin, optionally with options: pcgrad, "static(weights=[1,2])"'
    )
    complete_plugin_names(names, CHECKABLE_KINDS)
    command.add_argument(
        "--kind", choices=CHECKABLE_KINDS, help="the kind of the plugin, if plugins of several kinds have this name"
    )
    command.add_argument(
        "--only", action="append", metavar="PATTERN",
        help="run only checks whose names match this glob pattern; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--expect", action="append", default=[], metavar="CHECK=REASON",
        help="a check that is expected to fail, and the reason; may be repeated",
    )  # fmt: skip
    command.add_argument("--fast", action="store_true", help="use fewer examples, steps and learners")
    add_json(command)


def run(args: argparse.Namespace) -> int:
    # Hypothesis writes files to the current folder by default; keep them out of the user's folder.
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(Path(tempfile.gettempdir()) / "gradhomog-hypothesis"))
    from gradhomog import testing

    kits = {"homogenizers": testing.check_homogenizer, "learners": testing.check_learner}
    expected = dict(_parse_expectation(text) for text in args.expect)
    kinds = _resolve_kinds(args.names, args.kind)
    reports = []
    for name, kind in zip(args.names, kinds, strict=True):
        if sys.stderr.isatty():
            print(f"checking {name} …", file=sys.stderr)
        reports.append(kits[kind](name, expected_failures=expected, only=args.only, fast=args.fast))
        if not args.json:
            print(reports[-1], end="\n\n" if name is not args.names[-1] else "\n")
    if args.json:
        print_json([report.record() for report in reports])
    return 0 if all(report.passed for report in reports) else 1


def _parse_expectation(text: str) -> tuple[str, str]:
    check, equals, reason = text.partition("=")
    if not equals or not reason.strip():
        raise OptionError(
            f'`--expect` must be CHECK=REASON, with a reason; got {text!r}. For example: --expect "cost=slow".'
        )
    return check.strip(), reason.strip()


def _resolve_kinds(names: Sequence[str], kind: Kind | None) -> list[Kind]:
    """The kind of each plugin. Each plugin is created once, so that errors are raised before the first check runs.

    Raises:
        OptionError: plugins cannot be created; the message lists them all.
    """
    from gradhomog.testing.kits import SUBJECTS

    kinds = [kind or _find_kind(name) for name in names]
    errors: list[GradhomogError] = []
    for name, plugin_kind in zip(names, kinds, strict=True):
        try:
            SUBJECTS[plugin_kind](name)
        except GradhomogError as error:
            errors.append(error)
    if errors:
        raise OptionError(join_errors(errors))
    return kinds


def _find_kind(text: str) -> Kind:
    """The first kind that has a plugin of this name.

    Raises:
        OptionError: it is a domain or a problem.
    """
    from gradhomog.registry import installed

    selector = text.partition("(")[0].strip()
    for kind in CHECKABLE_KINDS:
        if selector in {form for info in installed().list(kind) for form in (info.name, info.selector)}:
            return kind
    if selector.partition(":")[0] in installed().names("domains"):
        raise OptionError(
            f"{text} is a domain; `gradhomog check` checks homogenizers and learners. Call "
            "gradhomog.testing.check_domain in a test of the domain."
        )
    if selector in installed().names("problems"):
        raise OptionError(
            f"{text} is a problem; `gradhomog check` checks homogenizers and learners. Run its own tests."
        )
    return "homogenizers"  # loading it raises an error that suggests a similar name
