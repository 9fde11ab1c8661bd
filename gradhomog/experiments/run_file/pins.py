"""Pins: the distribution and version of each plugin that a run file uses."""

import dataclasses
import importlib.metadata
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from gradhomog.errors import ConfigError, GradhomogError, join_errors
from gradhomog.experiments.run_file.schema import Config
from gradhomog.registry import KINDS, Kind, PluginInfo, expression, installed

_PIN = re.compile(r"(?P<selector>(?P<distribution>[^:=\s]+):[^:=\s]+)==(?P<version>[^=\s]+)")


@contextmanager
def use_pinned_plugins(config: Config) -> Iterator[Config]:
    """Context in which names resolve to the plugins pinned in `config.plugins`.

    Yields the configuration with all plugins that it uses pinned. If several distributions have a plugin of one name,
    the name refers to the pinned one. Pinned plugins must be installed in the pinned version.

    Raises:
        ConfigError: pins are malformed, or their plugins are not installed in that version; the message lists them all.
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
    errors = []
    for pin in pins:
        match = _PIN.fullmatch(pin)
        if match is None:
            errors.append(f"expected distribution:name==version; got {pin!r}.")
        elif offers.get(match["selector"]) != match["version"]:
            errors.append(
                f"{pin} is pinned, and {_installed_state(match['selector'], match['distribution'], offers)}. Install "
                f"{match['distribution']}=={match['version']}, or remove this pin and use another output folder."
            )
    if errors:
        raise ConfigError(f"`plugins`: {join_errors(errors)}")


def _installed_state(selector: str, distribution: str, offers: dict[str, str]) -> str:
    if selector in offers:
        return f"{distribution} {offers[selector]} is installed"
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return f"{distribution} is not installed"
    return f"{distribution} {version} has no such plugin"


def _plugins(config: Config) -> Iterator[PluginInfo]:
    """The plugins that a configuration names, including the members of presets.

    Skips invalid names: the code that uses them raises a more specific error.
    """
    # Imported here because they import torch; reports, which only read versions, do not need it.
    from gradhomog.learners.domains import domain_plugin
    from gradhomog.step.pipelines import pipeline

    for text in config.homogenizers:
        with suppress(GradhomogError):
            for members in expression.parse_alternatives(text):
                yield from (installed().find("homogenizers", selector) for selector, _ in members)
                yield from (member.info for member in pipeline(expression.render(members)).members if member.info)
    named: list[tuple[Kind, str]] = []
    if config.problem is not None:
        named += [("problems", config.problem["name"])]
    if config.problem is None:
        named += [("learners", text) for text in config.learners]
        named += [("domains", text) for text in (*config.domains.train, *config.domains.test)]
    for kind, text in named:
        with suppress(GradhomogError):
            selector = domain_plugin(text) if kind == "domains" else expression.parse_one(text)[0]
            yield installed().find(kind, selector)
