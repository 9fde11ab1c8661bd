"""Checks of a plugin's declarations: documentation, options, and an import without side effects."""

import functools
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from gradhomog.errors import GradhomogError, OptionError
from gradhomog.registry.options import documentation, fits, option_parameters
from gradhomog.testing import import_probe
from gradhomog.testing.assertions import error_of
from gradhomog.testing.check_results import CheckFailure, NotApplicable, check
from gradhomog.testing.subjects import PluginSubject

SUMMARY = 100  # characters: `gradhomog list --load` and the tables print it on one line


@check("homogenizers", "learners")
def documented(subject: PluginSubject[Any]) -> None:
    """Summary, reference and docstring exist, and the docstring names every option.

    `gradhomog show` prints them, and users choose plugins by them.
    """
    spec = subject.spec
    if not spec.summary.strip() or "\n" in spec.summary or len(spec.summary) > SUMMARY:
        raise CheckFailure(f"`summary` must be one line of 1 to {SUMMARY} characters; got {spec.summary!r}")
    if not spec.reference.strip():
        raise CheckFailure(
            "`reference` is empty: give the source (authors, year, DOI or arXiv number) or state that the method is new"
        )
    text = documentation(spec)
    if not text.strip():
        raise CheckFailure("the factory has no docstring: describe what the plugin computes, its inputs and its cost")
    if missing := [name for name in option_parameters(spec) if not re.search(rf"(?<!\w){name}(?!\w)", text)]:
        raise CheckFailure(f"the factory's docstring does not describe these options: {', '.join(missing)}")


@check("homogenizers", "learners")
def options_validated(subject: PluginSubject[Any]) -> None:
    """An unknown option, a wrong type and NaN each raise an `OptionError` that names the option."""
    _require_rejected(subject, "no_such_option", 1)
    for name, parameter in option_parameters(subject.spec).items():
        annotation = parameter.annotation
        if annotation is inspect.Parameter.empty:
            raise CheckFailure(f"option `{name}` has no type annotation, so values of a wrong type cannot be rejected")
        if not fits(object, annotation):
            _require_rejected(subject, name, object)
        for nan, anything in _NAN:
            if fits(nan, annotation) and not fits(anything, annotation):
                _require_rejected(subject, name, nan)


# NaN in each form that an option can hold, and a value of that form that fits only options that accept any object.
_NAN: tuple[tuple[Any, Any], ...] = tuple(
    (form(float("nan")), form(object)) for form in (lambda x: x, lambda x: [x], lambda x: [x, x], lambda x: {"name": x})
)


def _require_rejected(subject: PluginSubject[Any], name: str, value: object) -> None:
    error = error_of(lambda: subject.make_with(**{name: value}), GradhomogError)
    if error is None:
        raise CheckFailure(
            f"option `{name}`={value!r} is accepted: raise a gradhomog.OptionError that names the option"
        )
    if not isinstance(error, OptionError):
        raise CheckFailure(
            f"option `{name}`={value!r} raises {type(error).__name__}, not OptionError: {error}"
        ) from error
    if name not in str(error):
        raise CheckFailure(f"the error for option `{name}`={value!r} does not name the option: {error}") from error


@check("homogenizers", "learners")
def imports_cleanly(subject: PluginSubject[Any]) -> None:
    """The plugin is listed without torch, and importing it needs no optional package and changes nothing global.

    The check uses a fresh interpreter. Listing must import neither torch nor the plugin. The import must work without
    the packages of the distribution's extras (import those where they are used) and print nothing. It must not change
    torch's default dtype, number of threads, gradient mode and generators, nor numpy's and Python's generators.
    """
    if subject.info is None:
        raise NotApplicable("a spec without a distribution cannot be listed or imported")
    failures = _import_failures(subject.kind, subject.info.distribution, tuple(sys.path))
    otherwise = failures.get("", "the plugin is not listed in a fresh interpreter")
    if failure := failures.get(subject.info.selector, otherwise):
        raise CheckFailure(failure)


@functools.cache  # one fresh interpreter, which needs seconds to import torch, probes all plugins of a distribution
def _import_failures(kind: str, distribution: str, path: Sequence[str]) -> dict[str, str]:
    """Return failures by selector; that of the interpreter under the name ""."""
    arguments = json.dumps({"kind": kind, "distribution": distribution, "path": path})
    command = [sys.executable, "-P", "-W", "error::ImportWarning", import_probe.__file__, arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        failures: dict[str, str] = json.loads(done.stdout)
    except ValueError:  # the interpreter exited before it printed the results
        last = (done.stderr.strip().splitlines() or ["the interpreter exited"])[-1]
        failures = {"": done.stdout.strip() or last}
    return {selector: failure[:500] for selector, failure in failures.items()}
