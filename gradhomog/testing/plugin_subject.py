"""The plugin under check: its name, options, spec and distribution, read alike for every kind."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Generic, TypeVar

from gradhomog import expression
from gradhomog.errors import OptionError
from gradhomog.registry import Kind, PluginInfo, Registry, installed
from gradhomog.specs import DomainSpec, HomogenizerSpec, LearnerSpec

Spec = TypeVar("Spec", DomainSpec, HomogenizerSpec, LearnerSpec)


class PluginSubject(Generic[Spec]):
    """A plugin by its text (`"static(weights=[1, 2])"`), by name and options, or by a spec without a distribution.

    Raises:
        UnknownPluginError, PluginLoadError, OptionError, …: there is no such plugin, or it has no such option.
    """

    kind: Kind
    spec_type: type[Spec]

    def __init__(self, what: Any, registry: Registry | None = None) -> None:
        self.registry = registry or installed()
        self.info: PluginInfo | None = None
        self.options: dict[str, Any] = {}
        self.spec: Spec
        if isinstance(what, self.spec_type):
            self.spec, self.name = what, getattr(what.factory, "__name__", self.kind[:-1])
            return
        if isinstance(what, str):
            self.name, self.options = self.parse(what)
        elif isinstance(what, tuple) and len(what) == 2 and isinstance(what[0], str) and isinstance(what[1], Mapping):
            self.name, written = self.parse(what[0])
            self.options = {**written, **what[1]}
        else:
            raise OptionError(
                f"a plugin to check is a name, a pair (name, options) or a {self.spec_type.__name__}; got {what!r}."
            )
        self.info, spec = self.registry.load(self.kind, self.name)
        assert isinstance(spec, self.spec_type)
        self.spec = spec

    def parse(self, text: str) -> tuple[str, dict[str, Any]]:
        """Name and options of a text."""
        return expression.parse_one(text)

    @property
    def title(self) -> str:
        """The name in reports and messages."""
        return self.name

    def __str__(self) -> str:
        text = f"{self.kind[:-1]} {expression.render_one(self.title, self.options)}"
        if self.info is None:
            return text
        return f"{text} of {self.info.distribution} {self.info.version} ({self.info.module})"

    @property
    def claims(self) -> Set[str]:
        return getattr(self.spec, "traits", frozenset())

    def make_with(self, **options: Any) -> Any:
        """A fresh plugin with the options it is checked with and others."""
        raise NotImplementedError
