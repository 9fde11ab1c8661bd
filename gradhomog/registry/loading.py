"""Importing a plugin: its requirements, its module, its hooks and what they return, each refused with a reason."""

from __future__ import annotations

import difflib
import importlib.metadata
import inspect
from collections.abc import Iterable
from types import ModuleType
from typing import cast

import pluggy

from gradhomog import hooks
from gradhomog._version import __version__
from gradhomog.errors import GradhomogError, PluginLoadError
from gradhomog.registry.plugininfo import KINDS, PluginInfo
from gradhomog.specs import Spec

HOOKS = tuple(name for name in vars(hooks) if name.startswith("gradhomog_"))


def load(manager: pluggy.PluginManager, info: PluginInfo, requirements: Iterable[str]) -> Spec:
    """Import a plugin's module, register its hooks, and return what it says about itself.

    Args:
        requirements: of its distribution, as metadata has them.

    Raises:
        PluginLoadError: it is unusable; the cause is chained, and it stays unregistered.
    """
    _check_requirements(info, requirements)
    plugin = _imported(info)
    registered = manager.is_registered(plugin)
    try:
        if not registered:
            _register(manager, plugin, info)
        return _described(manager, plugin, info)
    except PluginLoadError:
        if not registered and manager.is_registered(plugin):
            manager.unregister(plugin)
        raise


def registered_name(info: PluginInfo) -> str:
    """The name of a plugin in the plugin manager."""
    return f"{info.kind}/{info.selector}"


def _check_requirements(info: PluginInfo, requirements: Iterable[str]) -> None:
    # Here, so that `import gradhomog` does not cost it.
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    version = __version__
    for text in requirements:
        try:
            requirement = Requirement(text)
            asked = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
            continue  # an installer cannot read it either
        ours = asked and canonicalize_name(requirement.name) == "gradhomog"
        if ours and not requirement.specifier.contains(version, prereleases=True):
            raise PluginLoadError(
                f"{info} needs gradhomog {requirement.specifier}; this is gradhomog {version}. It was not imported. "
                f"Install a version of {info.distribution} for gradhomog {version}, or the gradhomog that it needs, or "
                f"leave '{info.name}' out."
            )


def _imported(info: PluginInfo) -> ModuleType:
    point = importlib.metadata.EntryPoint(info.name, info.module, f"gradhomog.{info.kind}")
    try:
        plugin = point.load()
    except GradhomogError as cause:  # it says itself what is missing
        raise PluginLoadError(f"{info} did not load: {cause}") from cause
    except ModuleNotFoundError as cause:
        advice = f"Reinstall {info.distribution} with all that it depends on, or leave '{info.name}' out."
        raise _refusal(info, f"did not load: {type(cause).__name__}: {cause}", advice) from cause
    except (Exception, SystemExit) as cause:  # SystemExit: a script without a guard must not end ours
        raise _refusal(info, f"did not load: {type(cause).__name__}: {cause}") from cause
    if not isinstance(plugin, ModuleType):
        raise _refusal(info, f"must be a module; its entry point gives a {type(plugin).__name__}")
    return plugin


def _register(manager: pluggy.PluginManager, plugin: ModuleType, info: PluginInfo) -> None:
    try:
        manager.register(plugin, name=registered_name(info))
        manager.check_pending()
    except pluggy.PluginValidationError as cause:
        raise _refusal(info, f"has a hook that does not fit: {cause}{_near_hook(plugin)}") from cause
    for name in HOOKS:
        for impl in getattr(manager.hook, name).get_hookimpls():
            if impl.plugin is not plugin:
                continue
            wraps = impl.wrapper or impl.hookwrapper
            if wraps and name != "gradhomog_make":
                raise _refusal(
                    info, f"wraps the hook `{name}`, which is never called; only `gradhomog_make` can be wrapped"
                )
            if impl.trylast and not wraps and name == "gradhomog_make":
                # Of two that come last the one registered first answers, and the first answer counts.
                raise _refusal(
                    info,
                    "has a hook `gradhomog_make` with trylast=True, which is never called: gradhomog's own answers "
                    "before it. Mark it with @gradhomog.hookimpl(wrapper=True), or without trylast",
                )


def _described(manager: pluggy.PluginManager, plugin: ModuleType, info: PluginInfo) -> Spec:
    """The result of the required hook."""
    hook_name, spec_type = KINDS[info.kind]
    if not hasattr(plugin, hook_name) or not any(
        impl.plugin is plugin for impl in getattr(manager.hook, hook_name).get_hookimpls()
    ):
        raise _refusal(info, f"has no hook `{hook_name}`: define it and mark it with @gradhomog.hookimpl")
    try:
        spec = getattr(plugin, hook_name)()
    except (Exception, SystemExit) as cause:
        raise _refusal(info, f"raised in `{hook_name}`: {type(cause).__name__}: {cause}") from cause
    if not isinstance(spec, spec_type):
        raise _refusal(info, f"must return a {spec_type.__name__} from `{hook_name}`; got {type(spec).__name__}")
    try:
        inspect.signature(spec.factory)  # it is the list of options
    except (TypeError, ValueError) as cause:
        raise _refusal(info, f"must have a callable `factory` with a Python signature; got {spec.factory!r}") from cause
    return cast(Spec, spec)


def _refusal(info: PluginInfo, reason: str, advice: str = "") -> PluginLoadError:
    return PluginLoadError(f"{info} {reason} (gradhomog {__version__}). {advice or info.advice}")


def _near_hook(plugin: ModuleType) -> str:
    strays = [name for name in vars(plugin) if name.startswith("gradhomog_") and name not in HOOKS]
    near = [match for stray in strays for match in difflib.get_close_matches(stray, HOOKS, n=1)]
    return f". Did you mean '{near[0]}'?" if near else ""
