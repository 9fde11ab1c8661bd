"""The plugin under check: its name, options, spec and distribution; base class for every kind."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Generic, TypeVar

from gradhomog.errors import OptionError
from gradhomog.registry import Kind, PluginInfo, Registry, expression, installed
from gradhomog.registry.specs import DomainSpec, HomogenizerSpec, LearnerSpec

Spec = TypeVar("Spec", DomainSpec, HomogenizerSpec, LearnerSpec)


class PluginSubject(Generic[Spec]):
    """The plugin under check, given as text (`"static(weights=[1, 2])"`), as name and options, or as a spec.

    A spec needs no distribution.

    Raises:
        UnknownPluginError, PluginLoadError, OptionError, …: the plugin or one of its options does not exist.
    """

    kind: Kind
    spec_type: type[Spec]

    def __init__(self, plugin: Any, registry: Registry | None = None) -> None:
        self.registry = registry or installed()
        self.info: PluginInfo | None = None
        self.options: dict[str, Any] = {}
        self.spec: Spec
        if isinstance(plugin, self.spec_type):
            self.spec, self.name = plugin, getattr(plugin.factory, "__name__", self.kind[:-1])
            return
        if isinstance(plugin, str):
            self.name, self.options = self.parse(plugin)
        elif _is_name_with_options(plugin):
            self.name, options = self.parse(plugin[0])
            self.options = {**options, **plugin[1]}
        else:
            raise OptionError(
                f"a plugin must be a name, a pair (name, options) or a {self.spec_type.__name__}; got {plugin!r}."
            )
        self.info, spec = self.registry.load(self.kind, self.name)
        assert isinstance(spec, self.spec_type)
        self.spec = spec

    def parse(self, text: str) -> tuple[str, dict[str, Any]]:
        """Return name and options of a plugin's text."""
        return expression.parse_one(text)

    @property
    def title(self) -> str:
        """The plugin's name in reports and messages."""
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
        """Make a fresh plugin with the options under check, updated by `options`."""
        raise NotImplementedError


def _is_name_with_options(plugin: Any) -> bool:
    if not isinstance(plugin, tuple) or len(plugin) != 2:
        return False
    return isinstance(plugin[0], str) and isinstance(plugin[1], Mapping)
