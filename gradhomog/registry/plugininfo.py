"""What is known of a plugin before it is imported: its kind, its name, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gradhomog.specs import DomainSpec, HomogenizerSpec, LearnerSpec

Kind = Literal["homogenizers", "learners", "domains"]

KINDS: dict[Kind, tuple[str, type[Any]]] = {
    "homogenizers": ("gradhomog_homogenizer", HomogenizerSpec),
    "learners": ("gradhomog_learner", LearnerSpec),
    "domains": ("gradhomog_domain", DomainSpec),
}
"""Each kind's required hook and the type that it returns."""


@dataclass(frozen=True, order=True)
class PluginInfo:
    """What the metadata of an installed distribution says about one plugin; nothing is imported to know it."""

    name: str
    distribution: str
    version: str
    module: str
    kind: Kind
    disabled: bool = False

    @property
    def selector(self) -> str:
        """The unambiguous name, `distribution:name`."""
        return f"{self.distribution}:{self.name}"

    @property
    def advice(self) -> str:
        """What can be done by who meets a fault in it."""
        return f"Report it to the authors of {self.distribution}, or leave '{self.name}' out."

    def __str__(self) -> str:
        return f"{self.kind[:-1]} '{self.name}' of {self.distribution} {self.version} ({self.module})"
