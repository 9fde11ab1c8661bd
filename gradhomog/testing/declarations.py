"""Checks of what a plugin of any kind declares: documentation, options, an import without side effects."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import time
from typing import Any

from gradhomog.errors import GradhomogError, OptionError
from gradhomog.registry import PluginInfo
from gradhomog.registry.options import accepted, documentation, fits
from gradhomog.testing.checking import CheckFailure, NotApplicable, check
from gradhomog.testing.import_probe import PROBE
from gradhomog.testing.option_values import option_types
from gradhomog.testing.plugin_subject import PluginSubject

SUMMARY = 100  # characters: `gradhomog list --load` and the tables show it on one line


@check("homogenizers", "learners", "domains")
def documented(subject: PluginSubject[Any]) -> None:
    """Summary, reference and docstring exist, and the docstring names every option.

    `gradhomog show` prints them: users choose by them.
    """
    spec = subject.spec
    if not spec.summary.strip() or "\n" in spec.summary or len(spec.summary) > SUMMARY:
        raise CheckFailure(f"`summary` must be one line of 1 to {SUMMARY} characters; it is {spec.summary!r}")
    if not spec.reference.strip():
        raise CheckFailure(
            "`reference` is empty: give the source (authors, year, DOI or arXiv number), or state that it is new"
        )
    text = documentation(spec)
    if not text.strip():
        raise CheckFailure("the factory has no docstring: describe what it computes, from which inputs, at which cost")
    if missing := [name for name in accepted(spec) if not re.search(rf"(?<!\w){name}(?!\w)", text)]:
        raise CheckFailure(f"the factory's docstring does not describe these options: {', '.join(missing)}")


@check("homogenizers", "learners", "domains")
def options_validated(subject: PluginSubject[Any]) -> None:
    """An unknown option, one of a wrong type and NaN raise an `OptionError` that names the option.

    Of a domain whose inputs are images, so do a `size` of 0 and a negative one.
    """
    _refused(subject, "no_such_option", 1)
    for name, annotation in option_types(subject.spec):
        if annotation is inspect.Parameter.empty:
            raise CheckFailure(f"option `{name}` has no type annotation, so a value of a wrong type cannot be refused")
        if not fits(object, annotation):
            _refused(subject, name, object)
        for nan, anything in _NAN:
            if fits(nan, annotation) and not fits(anything, annotation):
                _refused(subject, name, nan)
    for name, value in getattr(subject, "invalid_options", ()):
        _refused(subject, name, value)


# NaN as options can hold it; beside each a value that only fits an option that takes any object.
_NAN: tuple[tuple[Any, Any], ...] = tuple(
    (form(float("nan")), form(object)) for form in (lambda x: x, lambda x: [x], lambda x: [x, x], lambda x: {"name": x})
)


def _refused(subject: PluginSubject[Any], name: str, value: object) -> None:
    try:
        subject.make_with(**{name: value})
    except OptionError as error:
        if name not in str(error):
            raise CheckFailure(f"the error about option `{name}`={value!r} does not name it: {error}") from error
        return
    except GradhomogError as error:
        raise CheckFailure(f"`{name}`={value!r} gives {type(error).__name__}, not OptionError: {error}") from error
    raise CheckFailure(f"option `{name}`={value!r} is accepted: raise gradhomog.OptionError that names it")


@check("homogenizers", "learners", "domains")
def imports_cleanly(subject: PluginSubject[Any]) -> None:
    """The plugin is listed without torch, and importing it needs no optional package and changes nothing global.

    In a fresh interpreter. Listing must import neither torch nor the plugin. Its import must work without the packages
    of its distribution's extras (import those where they are used), print nothing, and leave unchanged: torch's default
    dtype, number of threads, gradient mode and generators, numpy's and Python's generators.
    """
    if subject.info is None:
        raise NotApplicable("a spec without a distribution: nothing to list or import")
    if complaint := _import_complaint(subject.info):
        raise CheckFailure(complaint)


_probed: dict[tuple[object, ...], tuple[int, dict[str, str]]] = {}
"""Complaints by plugin, with the time of the probe: a fresh interpreter imports torch in seconds, so one serves all
plugins of a distribution."""


def _import_complaint(info: PluginInfo) -> str:
    file = getattr(sys.modules.get(info.module.partition(":")[0]), "__file__", None)
    released = os.stat(file).st_mtime_ns if file and os.path.exists(file) else 0
    key = info.kind, info.distribution, info.version, tuple(sys.path)
    if key not in _probed or _probed[key][0] <= released or info.selector not in _probed[key][1]:
        started = time.time_ns()
        _probed[key] = started, _probe(info)
    return _probed[key][1].get(info.selector, "it is not listed in a fresh interpreter")


def _probe(info: PluginInfo) -> dict[str, str]:
    given = {"kind": info.kind, "selector": info.selector, "path": sys.path}
    command = [sys.executable, "-W", "error::ImportWarning", "-c", PROBE, json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return {selector: complaint[:500] for selector, complaint in json.loads(done.stdout).items()}
    except ValueError:  # the interpreter itself ended
        return {info.selector: (done.stdout.strip() or (done.stderr.strip().splitlines() or ["it ends"])[-1])[:500]}
