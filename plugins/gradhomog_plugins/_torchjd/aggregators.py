"""TorchJD's aggregators by class name, made from options as a text or a run file can hold them."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.metadata
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from gradhomog import OptionError, PluginLoadError
from gradhomog_plugins._torchjd.values import Misfit, convert, hints, words

# For arguments without a default in TorchJD: what the methods' authors used, and what follows from the tasks.
USUAL: Mapping[str, Mapping[str, Any]] = {
    "CAGrad": {"c": 0.4},  # Liu et al. 2021: their scripts for NYU-v2 and CityScapes
    "FairGrad": {"alpha": 2.0},  # Ban and Ji 2024: their scripts for CelebA and QM9
    "NashMTL": {"n_tasks": 1},  # until the first step shows how many there are
}

BASES = ("Aggregator", "WeightedAggregator", "GramianWeightedAggregator")
"""What the bridge knows an aggregator by: bases, none of them a method."""


@dataclass(frozen=True)
class Recipe:
    """An aggregator of TorchJD and what it is made with.

    Attributes:
        name: of its class.
        options: as the user gave them.
        arguments: as TorchJD takes them.
    """

    name: str
    options: Mapping[str, Any]
    arguments: Mapping[str, Any]

    def make(self, tasks: int = 1) -> Any:
        """A new one in its first state; `tasks` is for those that have to know the number before they see it."""
        return aggregators()[self.name](**{**self.arguments, **({"n_tasks": tasks} if self.counts else {})})

    @property
    def counts(self) -> bool:
        """Whether it has to know the number of tasks before it sees them, and the user has not told."""
        return "n_tasks" in self.arguments and "n_tasks" not in self.options


def choose(name: str, options: Mapping[str, Any]) -> Recipe:
    """The aggregator of that class name with these options; makes one, to see that it can be made.

    Raises:
        PluginLoadError: TorchJD, or a solver that this aggregator needs, is not installed.
        OptionError: there is no such aggregator, or it does not take these options.
    """
    known = aggregators()
    if name not in known:
        lower = {each.lower(): each for each in known}
        near = difflib.get_close_matches(name.lower(), lower, n=1)
        hint = f" Did you mean '{lower[near[0]]}'?" if near else ""
        raise OptionError(
            f"torchjd: `aggregator` must be the name of an aggregator of TorchJD {version()}; got {name!r}.{hint} "
            f"There are: {', '.join(known)}."
        )
    try:
        recipe = Recipe(name, dict(options), bind(known[name], options, f"torchjd: {name}"))
        recipe.make()
    except OptionError:
        raise
    except ImportError as cause:
        raise PluginLoadError(
            f"torchjd: {name} needs packages that are not installed: {cause} "
            "What all of TorchJD's aggregators need: pip install 'torchjd[full]'"
        ) from cause
    except (TypeError, ValueError) as cause:
        raise OptionError(
            f"torchjd: {name} refuses `options`={dict(options)}: {cause} {_takes(known[name])}"
        ) from cause
    return recipe


def aggregators() -> dict[str, type]:
    """TorchJD's methods that aggregate rows, by class name; those that only weigh a Gramian are not among them."""
    module = library()
    bases = [getattr(module, name) for name in BASES]
    found = {name: getattr(module, name) for name in sorted(module.__all__)}
    return {name: kind for name, kind in found.items() if issubclass(kind, bases[0]) and kind not in bases}


def version() -> str:
    """Of TorchJD."""
    return importlib.metadata.version("torchjd")


def library() -> ModuleType:
    """`torchjd.aggregation`, imported when a homogenizer is made and not before.

    Raises:
        PluginLoadError: TorchJD is missing or too old.
    """
    try:
        found = importlib.import_module("torchjd.aggregation")
    except ImportError as cause:
        raise PluginLoadError(
            f"torchjd: the library TorchJD cannot be imported ({cause}). Run: pip install 'gradhomog[compare]'"
        ) from cause
    if not all(hasattr(found, name) for name in BASES):
        raise PluginLoadError(
            f"torchjd: needs TorchJD 0.18 or newer; {version()} is installed. Run: pip install 'gradhomog[compare]'"
        )
    return found


def bind(kind: type, options: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """What a class of TorchJD is made with, from plain options: each known, of its type, and none missing.

    Raises:
        OptionError: names the option, what it must be, and all that the class takes.
    """
    parameters, annotations = inspect.signature(kind).parameters, hints(kind)
    for name in options:
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise OptionError(f"{owner} has no option {name!r} in `options`.{hint} {_takes(kind)}")
    given = {**USUAL.get(kind.__name__, {}), **options}
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in given:
            raise OptionError(
                f"{owner} needs {name!r}, which has no usual value: options={{'{name}': …}}. {_takes(kind)}"
            )
    bound = {}
    for name, value in given.items():
        annotation = annotations.get(name, Any)
        try:
            bound[name] = convert(value, annotation, functools.partial(_projector, owner=f"{owner}: '{name}'"))
        except Misfit:
            raise OptionError(
                f"{owner}: {name!r} in `options` must be {words(annotation)}; got {value!r}. {_takes(kind)}"
            ) from None
    return bound


def _projector(options: Mapping[str, Any], owner: str) -> Any:
    kind = importlib.import_module("torchjd.linalg").QuadprogProjector
    return kind(**bind(kind, options, owner))


def _takes(kind: type) -> str:
    annotations, described = hints(kind), []
    for name, parameter in inspect.signature(kind).parameters.items():
        default = USUAL.get(kind.__name__, {}).get(name, parameter.default)
        written = "" if default is parameter.empty else f"={getattr(default, '__name__', default)}"
        described.append(f"{name}{written} ({words(annotations.get(name, Any))})")
    return f"It takes: {', '.join(described) or 'no options'}."
