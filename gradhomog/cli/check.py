"""`gradhomog check NAME`: run the conformance kit on plugins: the checks that bind all, and those of claimed traits."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradhomog.cli._output import add_json, print_json
from gradhomog.cli.completion import plugin_names
from gradhomog.errors import GradhomogError, OptionError
from gradhomog.faults import join_faults

if TYPE_CHECKING:
    from gradhomog.registry import Kind

CHECKED: tuple[Kind, ...] = ("homogenizers", "learners", "domains")
"""The kinds of plugins for which there are checks."""


def add(commands: Any) -> None:
    command = commands.add_parser(
        "check",
        help="run the conformance kit on plugins",
        description=__doc__,
        epilog="Exit codes: 0 no binding check failed; 1 one failed; 2 unusable input.",
    )
    names = command.add_argument(
        "names", nargs="+", metavar="NAME", help='a plugin, with options: pcgrad, "static(weights=[1,2])"'
    )
    names.completer = plugin_names
    command.add_argument(
        "--kind",
        choices=CHECKED,
        help="where several kinds have a plugin of this name",
    )
    command.add_argument(
        "--only", action="append", metavar="PATTERN", help="checks whose name a glob pattern matches; may be repeated"
    )
    command.add_argument(
        "--expect", action="append", default=[], metavar="CHECK=REASON",
        help="a check that is expected to fail, and why; may be repeated",
    )  # fmt: skip
    command.add_argument("--fast", action="store_true", help="fewer examples, steps and learners")
    add_json(command)
    command.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    # Hypothesis writes files where it runs; keep them out of the user's folder.
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(Path(tempfile.gettempdir()) / "gradhomog-hypothesis"))
    from gradhomog import testing

    kits = {
        "homogenizers": testing.check_homogenizer,
        "learners": testing.check_learner,
        "domains": testing.check_domain,
    }
    expected = dict(_expectation(text) for text in given.expect)
    kinds = _look_up(given.names, given.kind)
    reports = []
    for name, kind in zip(given.names, kinds, strict=True):
        if sys.stderr.isatty():
            print(f"checking {name} …", file=sys.stderr)
        reports.append(kits[kind](name, expected_failures=expected, only=given.only, fast=given.fast))
        if not given.json:
            print(reports[-1], end="\n\n" if name is not given.names[-1] else "\n")
    if given.json:
        print_json([report.record() for report in reports])
    return 0 if all(report.passed for report in reports) else 1


def _expectation(text: str) -> tuple[str, str]:
    check, equals, reason = text.partition("=")
    if not equals or not reason.strip():
        raise OptionError(
            f'`--expect` is CHECK=REASON, with a reason; got {text!r}. For example: --expect "cost=slow".'
        )
    return check.strip(), reason.strip()


def _look_up(names: Sequence[str], kind: Kind | None) -> list[Kind]:
    """The kinds of all plugins, each of which is made once, before the first check runs.

    Raises:
        GradhomogError: one cannot be made. OptionError: several cannot, and it names them all.
    """
    from gradhomog.testing.kits import make_subject

    kinds = [kind or _kind(name) for name in names]
    errors: list[GradhomogError] = []
    for name, own in zip(names, kinds, strict=True):
        try:
            make_subject(own, name)
        except GradhomogError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise OptionError(join_faults(errors))
    return kinds


def _kind(text: str) -> Kind:
    """The kind of the plugin of a name: the first kind that has it."""
    from gradhomog.registry import installed

    selector = text.partition("(")[0].strip()
    for kind in CHECKED:
        selectors = {form for info in installed().list(kind) for form in (info.name, info.selector)}
        if selector in selectors or (kind == "domains" and selector.partition(":")[0] in selectors):
            return kind
    return "homogenizers"  # its error suggests a similar name
