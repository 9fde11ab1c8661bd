"""Plugins by entry-point name: listed without importing, loaded when named, refused with a precise reason.

pluggy's own `load_setuptools_entrypoints` is not used: one broken plugin stops it, a misspelt name loads nothing in
silence, and of two plugins of one name it takes whichever the file system yields first.
"""

from __future__ import annotations

import difflib
import functools
import importlib.metadata
import inspect
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, cast

import pluggy

import gradhomog
from gradhomog import hooks
from gradhomog.errors import (
    AmbiguousPluginError,
    DisabledPluginError,
    GradhomogError,
    OptionError,
    PluginLoadError,
    PluginRunError,
    UnknownPluginError,
)
from gradhomog.options import bind
from gradhomog.specs import DomainSpec, HomogenizerSpec, LearnerSpec, Spec

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

    def __str__(self) -> str:
        return f"{self.kind[:-1]} '{self.name}' of {self.distribution} {self.version} ({self.module})"


class Registry:
    """The plugins of the installed distributions.

    Args:
        entry_points: candidates; by default those of all installed distributions in the groups
            `gradhomog.homogenizers`, `gradhomog.learners` and `gradhomog.domains`.
        disabled: selectors (`name` or `distribution:name`) that are refused; by default those of the environment
            variable GRADHOMOG_DISABLE, separated by commas.

    A program normally uses the one of `gradhomog.registry.installed()`; tests make their own.
    """

    def __init__(
        self,
        entry_points: Iterable[importlib.metadata.EntryPoint] | None = None,
        disabled: Iterable[str] | None = None,
    ) -> None:
        if disabled is None:
            disabled = os.environ.get("GRADHOMOG_DISABLE", "").split(",")
        self._disabled = frozenset(text.strip() for text in disabled if text.strip())
        self._entry_points = None if entry_points is None else tuple(entry_points)
        self._loaded: dict[PluginInfo, Spec] = {}
        self.manager = pluggy.PluginManager(hooks.PROJECT)
        self.manager.add_hookspecs(hooks)
        self.manager.register(_Maker(), name="gradhomog")

    # -- listing: metadata only ---------------------------------------------------------------------------------------

    @functools.cached_property
    def _plugins(self) -> dict[Kind, tuple[PluginInfo, ...]]:
        # The path may hold a distribution twice (editable beside installed): the first on the path is the one imported.
        found: dict[Kind, dict[tuple[str, str], PluginInfo]] = {kind: {} for kind in KINDS}
        for kind in KINDS:
            group = f"gradhomog.{kind}"
            points = (
                importlib.metadata.entry_points(group=group)
                if self._entry_points is None
                else [point for point in self._entry_points if point.group == group]
            )
            for point in points:
                dist = point.dist
                distribution = (dist and dist.name) or "?"  # a folder left by a broken uninstall has no name
                blocked = not self._disabled.isdisjoint({point.name, f"{distribution}:{point.name}"})
                info = PluginInfo(point.name, distribution, (dist and dist.version) or "?", point.value, kind, blocked)
                found[kind].setdefault((distribution, point.name), info)
        return {kind: tuple(sorted(infos.values())) for kind, infos in found.items()}

    def list(self, kind: Kind) -> tuple[PluginInfo, ...]:
        """All plugins of a kind, sorted by name, disabled ones included; imports none of them."""
        if kind not in KINDS:
            raise OptionError(f"`kind` must be one of {', '.join(map(repr, KINDS))}; got {kind!r}.")
        return self._plugins[kind]

    def names(self, kind: Kind) -> tuple[str, ...]:
        """The names a user can type; of one name offered by several distributions, the forms `distribution:name`."""
        infos = [info for info in self.list(kind) if not info.disabled]
        counts: dict[str, int] = {}
        for info in infos:
            counts[info.name] = counts.get(info.name, 0) + 1
        return tuple(info.name if counts[info.name] == 1 else info.selector for info in infos)

    def find(self, kind: Kind, selector: str) -> PluginInfo:
        """The one plugin that `name` or `distribution:name` means; imports nothing.

        Raises:
            UnknownPluginError: nobody offers it; the message suggests a near name.
            AmbiguousPluginError: several distributions do; the message names them all.
            DisabledPluginError: GRADHOMOG_DISABLE blocks it.
        """
        matches = [info for info in self.list(kind) if selector in (info.name, info.selector)]
        enabled = [info for info in matches if not info.disabled]
        if len(enabled) == 1:
            return enabled[0]
        if enabled:
            offers = " and ".join(f"{info.distribution} {info.version}" for info in enabled)
            choices = " or ".join(repr(info.selector) for info in enabled)
            raise AmbiguousPluginError(
                f"{kind[:-1]} '{selector}' is offered by {offers}. Write {choices} to choose one."
            )
        if matches:
            raise DisabledPluginError(
                f"{matches[0]} is disabled by GRADHOMOG_DISABLE={','.join(sorted(self._disabled))}. "
                "Take it out of that variable to use it."
            )
        names = self.names(kind)
        known = {name: name for name in names} | {info.selector: info.selector for info in self.list(kind)}
        lower = {name.lower(): name for name in known}
        near = difflib.get_close_matches(selector.lower(), lower, n=1)
        others = [other for other in KINDS if any(selector in (i.name, i.selector) for i in self.list(other))]
        hint = f" Did you mean '{lower[near[0]]}'?" if near else ""
        if others:
            hint = f" A {others[0][:-1]} is called so."
        raise UnknownPluginError(
            f"no {kind[:-1]} is called '{selector}'.{hint} Installed: {', '.join(names) or 'none'}."
        )

    # -- loading: on use ----------------------------------------------------------------------------------------------

    def load(self, kind: Kind, selector: str) -> tuple[PluginInfo, Spec]:
        """Import a plugin's module, check its hooks, and return what it says about itself.

        Raises:
            PluginLoadError: the import fails, the hook is missing, misspelt, raises or returns the wrong type. The
                cause is chained, and the plugin stays unregistered.
        """
        info = self.find(kind, selector)
        if info not in self._loaded:
            self._loaded[info] = self._import(info)
        return info, self._loaded[info]

    def _import(self, info: PluginInfo) -> Spec:
        hook_name, spec_type = KINDS[info.kind]
        point = importlib.metadata.EntryPoint(info.name, info.module, f"gradhomog.{info.kind}")
        try:
            plugin = point.load()
        except (Exception, SystemExit) as cause:  # SystemExit: a script without a guard must not end ours
            raise self._refusal(info, f"did not load: {type(cause).__name__}: {cause}") from cause
        if not isinstance(plugin, ModuleType):
            raise self._refusal(info, f"must be a module; its entry point gives a {type(plugin).__name__}")
        registered = self.manager.is_registered(plugin)
        try:
            if not registered:
                self.manager.register(plugin, name=f"{info.kind}/{info.selector}")
                self.manager.check_pending()
        except pluggy.PluginValidationError as cause:
            self._forget(plugin, registered)
            raise self._refusal(info, f"has a hook that does not fit: {cause}{_near_hook(plugin)}") from cause
        if not hasattr(plugin, hook_name) or not any(
            impl.plugin is plugin for impl in getattr(self.manager.hook, hook_name).get_hookimpls()
        ):
            self._forget(plugin, registered)
            raise self._refusal(info, f"has no hook `{hook_name}`: define it and mark it with @gradhomog.hookimpl")
        try:
            spec = getattr(plugin, hook_name)()
        except Exception as cause:
            self._forget(plugin, registered)
            raise self._refusal(info, f"raised in `{hook_name}`: {type(cause).__name__}: {cause}") from cause
        if not isinstance(spec, spec_type):
            self._forget(plugin, registered)
            raise self._refusal(
                info, f"must return a {spec_type.__name__} from `{hook_name}`; got {type(spec).__name__}"
            )
        try:
            inspect.signature(spec.factory)  # it is the list of options
        except (TypeError, ValueError) as cause:
            self._forget(plugin, registered)
            raise self._refusal(
                info, f"must have a callable `factory` with a Python signature; got {spec.factory!r}"
            ) from cause
        return cast(Spec, spec)

    def _forget(self, plugin: object, was_registered: bool) -> None:
        if not was_registered and self.manager.is_registered(plugin):
            self.manager.unregister(plugin)

    @staticmethod
    def _refusal(info: PluginInfo, reason: str) -> PluginLoadError:
        return PluginLoadError(f"{info} {reason} (gradhomog {gradhomog.__version__})")

    # -- making -------------------------------------------------------------------------------------------------------

    def make(
        self, kind: Kind, selector: str, options: Mapping[str, Any], *arguments: Any, **given: Any
    ) -> tuple[PluginInfo, Spec, Any]:
        """Load a plugin, bind the user's `options` against its factory's signature, and make the object.

        `arguments` and `given` are what the host supplies (an encoder, a size); they are not options. Goes through the
        hook `gradhomog_make`, so that registered plugins may wrap it.

        Raises:
            OptionError: an option is unknown, ill-typed or refused by the factory.
            PluginRunError: the factory raised anything else.
        """
        info, spec = self.load(kind, selector)
        bound = bind(spec, info.name, options)
        try:
            made = self.manager.hook.gradhomog_make(spec=spec, arguments=arguments, options={**bound, **given})
        except GradhomogError:
            raise
        except Exception as cause:
            raise PluginRunError(
                f"{info} could not be made: {type(cause).__name__}: {cause} (gradhomog {gradhomog.__version__})"
            ) from cause
        return info, spec, made

    def observers(self, config: Mapping[str, Any]) -> tuple[hooks.Observer, ...]:
        """The observers that registered plugins provide for a run with this configuration.

        Raises:
            PluginRunError: a plugin's hook raises, or returns what is neither None nor callable.
        """
        try:
            made = self.manager.hook.gradhomog_observers(config=config)
        except Exception as cause:
            raise PluginRunError(
                f"a plugin raised in `gradhomog_observers`: {type(cause).__name__}: {cause}"
            ) from cause
        for observer in made:
            if observer is not None and not callable(observer):
                raise PluginRunError(f"`gradhomog_observers` must return a function or None; got {observer!r}.")
        return tuple(observer for observer in made if observer is not None)


def _near_hook(plugin: ModuleType) -> str:
    known = [name for name in vars(hooks) if name.startswith("gradhomog_")]
    strays = [name for name in vars(plugin) if name.startswith("gradhomog_") and name not in known]
    near = [match for stray in strays for match in difflib.get_close_matches(stray, known, n=1)]
    return f". Did you mean '{near[0]}'?" if near else ""


class _Maker:
    """The ordinary way to make what a spec describes; last, so that plugins can wrap or replace it."""

    @hooks.hookimpl(trylast=True)
    def gradhomog_make(self, spec: Spec, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return spec.factory(*arguments, **options)


@functools.cache
def installed() -> Registry:
    """The registry of the installed distributions, made once."""
    return Registry()
