"""What a plugin of any kind says about itself: documentation, options, a clean import."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from typing import Any

from gradhomog.errors import GradhomogError, OptionError
from gradhomog.registry import PluginInfo
from gradhomog.registry.options import accepted, documentation, fits, type_hints
from gradhomog.specs import Spec
from gradhomog.testing.checking import CheckFailure, NotApplicable

SUMMARY = 100  # characters: `gradhomog list --load` and the tables show it on one line


def judge_documentation(spec: Spec) -> None:
    """Raise unless a plugin of any kind is documented."""
    if not spec.summary.strip() or "\n" in spec.summary or len(spec.summary) > SUMMARY:
        raise CheckFailure(f"`summary` must be one line of 1 to {SUMMARY} characters; it is {spec.summary!r}")
    if not spec.reference.strip():
        raise CheckFailure(
            "`reference` is empty: say where it comes from (authors, year, DOI or arXiv number), or that it is new"
        )
    text = documentation(spec)
    if not text.strip():
        raise CheckFailure("the factory has no docstring: say what it computes, from what, and what it costs")
    if missing := [name for name in accepted(spec) if not re.search(rf"(?<!\w){name}(?!\w)", text)]:
        raise CheckFailure(f"the factory's docstring does not say what these options do: {', '.join(missing)}")


def judge_options(spec: Spec, make: Any) -> None:
    """Raise unless `make(option=value)` refuses what cannot be used, whatever kind of plugin it makes."""
    _refused(make, "no_such_option", 1)
    known = type_hints(spec.factory)
    for name in accepted(spec):
        if name not in known:
            raise CheckFailure(f"option `{name}` has no type annotation, so a value of a wrong type cannot be refused")
        if not fits(object, known[name]):
            _refused(make, name, object)
        for nan, anything in _NAN:
            if fits(nan, known[name]) and not fits(anything, known[name]):
                _refused(make, name, nan)


# NaN as options can hold it; beside each what only an option fits that takes any object for a number.
_NAN: tuple[tuple[Any, Any], ...] = tuple(
    (form(float("nan")), form(object)) for form in (lambda x: x, lambda x: [x], lambda x: [x, x], lambda x: {"name": x})
)


def _refused(make: Any, name: str, value: object) -> None:
    try:
        make(**{name: value})
    except OptionError as error:
        if name not in str(error):
            raise CheckFailure(f"the error about option `{name}`={value!r} does not name it: {error}") from error
        return
    except GradhomogError as error:
        raise CheckFailure(f"`{name}`={value!r} gives {type(error).__name__}, not OptionError: {error}") from error
    raise CheckFailure(f"option `{name}`={value!r} is accepted: raise gradhomog.OptionError that names it")


def judge_import(info: PluginInfo | None) -> None:
    """Raise unless a plugin of any kind is imported without side effects."""
    if info is None:
        raise NotApplicable("a spec that no distribution offers: nothing to list or import")
    file = getattr(sys.modules.get(info.module), "__file__", None)
    release = os.stat(file).st_mtime_ns if file and os.path.exists(file) else 0
    if complaint := _import_complaint(info, tuple(sys.path), release):
        raise CheckFailure(complaint)


@functools.cache  # one module may be checked with many options
def _import_complaint(info: PluginInfo, path: tuple[str, ...], release: int) -> str:
    data = {"kind": info.kind, "selector": info.selector, "path": path}
    result = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", _PROBE, json.dumps(data)], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if result.returncode == 0 and not result.stdout.strip():
        return ""
    return (result.stdout.strip() or result.stderr.strip().splitlines()[-1])[:500]


_PROBE = '''
import contextlib, importlib.metadata, io, json, random, re, sys
given = json.loads(sys.argv[1])
sys.path[:] = given["path"]
import gradhomog
from gradhomog.registry import Registry
registry = Registry()
info = registry.find(given["kind"], given["selector"])
module = info.module.partition(":")[0]
early = sorted({"torch", module} & set(sys.modules))
if early:
    sys.exit(f"listing the plugins imports {', '.join(early)}")

import torch, numpy

class Refuse:
    """Optional packages of the distribution are not there."""
    def __init__(self, names):
        self.names = names
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def requirements(distribution):
    """Names of what it requires, and of what only its extras do."""
    needed, optional = set(), set()
    for text in importlib.metadata.requires(distribution) or []:
        name = re.match(r"[A-Za-z0-9._-]+", text).group().lower().replace("_", "-")
        (optional if "extra ==" in text else needed).add(name)
    return needed, optional - needed

def closure(names):
    seen = set()
    while names:
        name = names.pop()
        if name not in seen:
            seen.add(name)
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                names |= requirements(name)[0]
    return seen

packages = importlib.metadata.packages_distributions()
try:
    needed, optional = requirements(info.distribution)
except importlib.metadata.PackageNotFoundError:
    needed, optional = set(), set()
kept = closure(needed | {"gradhomog", info.distribution.lower()})
blocked = {
    package for package, owners in packages.items()
    if {owner.lower().replace("_", "-") for owner in owners} & optional - kept
}
for name in [name for name in sys.modules if name.partition(".")[0] in blocked]:
    del sys.modules[name]
sys.meta_path.insert(0, Refuse(blocked))

def state():
    return {
        "the default dtype": torch.get_default_dtype(), "the number of threads": torch.get_num_threads(),
        "the gradient mode": torch.is_grad_enabled(), "torch's generator": torch.get_rng_state().tolist(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the default device": torch.get_default_device(), "the precision": torch.get_float32_matmul_precision(),
        "numpy's generator": str(numpy.random.get_state()), "Python's generator": random.getstate(),
    }

before, printed = state(), io.StringIO()
with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
    try:
        registry.load(given["kind"], given["selector"])
    except BaseException as error:
        sys.__stdout__.write(f"without {', '.join(sorted(blocked)) or 'anything optional'}: {error}")
        sys.exit(1)
after = state()
changed = [name for name in before if before[name] != after[name]]
if changed:
    print("its import changes " + ", ".join(changed))
elif printed.getvalue().strip():
    print("its import prints " + repr(printed.getvalue()[:100]))
'''
