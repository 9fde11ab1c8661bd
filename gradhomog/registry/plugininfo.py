"""The identity of a plugin before it is imported: its kind, its name and its distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gradhomog.registry.specs import DomainSpec, HomogenizerSpec, LearnerSpec, ObserverSpec

Kind = Literal["homogenizers", "learners", "domains", "observers"]

KINDS: dict[Kind, tuple[str, type[Any]]] = {
    "homogenizers": ("gradhomog_homogenizer", HomogenizerSpec),
    "learners": ("gradhomog_learner", LearnerSpec),
    "domains": ("gradhomog_domain", DomainSpec),
    "observers": ("gradhomog_observer", ObserverSpec),
}
"""The required hook of each kind, and the type that it returns."""


@dataclass(frozen=True, order=True)
class PluginInfo:
    """One plugin in the metadata of an installed distribution, read without an import.

    Control characters are escaped, so that listings and messages cannot send them to the terminal.
    """

    name: str
    distribution: str
    version: str
    module: str
    kind: Kind
    disabled: bool = False

    def __post_init__(self) -> None:
        for name in ("name", "distribution", "version", "module"):
            object.__setattr__(self, name, _printable(getattr(self, name)))

    @property
    def selector(self) -> str:
        """The unambiguous name, of distribution and name, separated by a colon."""
        return f"{self.distribution}:{self.name}"

    @property
    def advice(self) -> str:
        """The last sentence of an error that the plugin caused."""
        return f"Report it to the authors of {self.distribution}, or remove '{self.name}'."

    def __str__(self) -> str:
        return f"{self.kind[:-1]} '{self.name}' of {self.distribution} {self.version} ({self.module})"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
