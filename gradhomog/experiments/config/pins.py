"""Pins: from which distribution, in which version, each plugin of a run file came."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from gradhomog import expression
from gradhomog.errors import ConfigError, GradhomogError
from gradhomog.experiments.config.schema import Config
from gradhomog.faults import join_faults
from gradhomog.registry import KINDS, Kind, PluginInfo, installed

_PIN = re.compile(r"(?P<selector>(?P<distribution>[^:=\s]+):[^:=\s]+)==(?P<version>[^=\s]+)")


@contextmanager
def using(config: Config) -> Iterator[Config]:
    """Within the context, names mean the plugins of `config.plugins`; gives the configuration with all that it uses.

    A name that several distributions offer means the one that is pinned. What is pinned must be installed in that
    version.

    Raises:
        ConfigError: a pin is malformed, or its plugin is not installed in that version; it names all.
    """
    _check(config.plugins)
    selectors = [pin.rpartition("==")[0] for pin in config.plugins]
    with installed().preferring(selectors):
        pins = {f"{info.selector}=={info.version}" for info in _plugins(config)}
        yield dataclasses.replace(config, plugins=sorted(pins))


def versions(pins: Sequence[str]) -> dict[str, str]:
    """The version of each pinned distribution."""
    matches = (_PIN.fullmatch(pin) for pin in pins)
    return {match["distribution"]: match["version"] for match in matches if match}


def _check(pins: Sequence[str]) -> None:
    offers = {info.selector: info.version for kind in KINDS for info in installed().list(kind)}
    faults = []
    for pin in pins:
        match = _PIN.fullmatch(pin)
        if match is None:
            faults.append(f"expected distribution:name==version; got {pin!r}.")
        elif offers.get(match["selector"]) != match["version"]:
            faults.append(
                f"{pin} is pinned, and {_state(match['selector'], match['distribution'], offers)}. Install "
                f"{match['distribution']}=={match['version']}; or start anew, without this pin, in another folder."
            )
    if faults:
        raise ConfigError(f"`plugins`: {join_faults(faults)}")


def _state(selector: str, distribution: str, offers: dict[str, str]) -> str:
    if selector in offers:
        return f"{distribution} {offers[selector]} is installed"
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return f"{distribution} is not installed"
    return f"{distribution} {version} has no such plugin"


def _plugins(config: Config) -> Iterator[PluginInfo]:
    """The plugins that a configuration names, with the members of presets.

    Leaves out what is wrong: where it is used there is an error that says more.
    """
    # Here, as they import torch: reports, which read versions, do without.
    from gradhomog.domains import domain_plugin
    from gradhomog.pipelines import pipeline

    for text in config.homogenizers:
        with suppress(GradhomogError):
            for members in expression.parse_alternatives(text):
                yield from (installed().find("homogenizers", selector) for selector, _ in members)
                yield from (member.info for member in pipeline(expression.render(members)).members if member.info)
    named: list[tuple[Kind, str]] = []
    if config.problem is None:
        named += [("learners", text) for text in config.learners]
        named += [("domains", text) for text in (*config.domains.train, *config.domains.test)]
    for kind, text in named:
        with suppress(GradhomogError):
            selector = domain_plugin(text) if kind == "domains" else expression.parse_one(text)[0]
            yield installed().find(kind, selector)
