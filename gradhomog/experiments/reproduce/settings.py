"""The user's choices of an experiment, and keys of run files that they cannot override."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradhomog.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """The user's choices.

    Attributes:
        domains: text of a domain for each benchmark that is present.
        scale: a name in `SCALES`.
        learners: learners of the rows: titles of the paper such as "iMAML", or names of plugins with options; empty:
            those of the table.
        targets: test benchmarks; empty: all of the table that are present.
        shots: numbers of shots; empty: those of the table.
        rotogbml: the pipeline of the rows RotoGBML; empty: that of the scale and problem.
        others: True to include the comparison methods of the tables.
        overrides: `key.path=value` of the run files.
    """

    domains: Mapping[str, str]
    scale: str = "smoke"
    learners: Sequence[str] = ()
    targets: Sequence[str] = ()
    shots: Sequence[int] = ()
    rotogbml: str = ""
    others: bool = True
    overrides: Sequence[str] = ()


def check_overrides(settings: Settings, *, networks: bool = False) -> None:
    """Raise ConfigError for keys that experiments set themselves: titles of rows and columns would be wrong.

    Args:
        networks: True if the experiment compares networks.
    """
    reserved = {
        "learner": "--learner", "homogenizers": "--rotogbml", "domains": "--domain and --target",
        "problem": "`gradhomog compare`", "episodes.shots": "--shots",
    }  # fmt: skip
    if networks:
        reserved["network.name"] = "another experiment"
    for override in settings.overrides:
        key = override.partition("=")[0].strip()
        for path, instead in reserved.items():
            if key == path or key.startswith(f"{path}."):
                raise ConfigError(f"--set {key}: the experiment sets this key; use {instead}.")
