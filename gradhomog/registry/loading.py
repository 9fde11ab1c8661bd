"""Import a plugin: check its requirements, its module, its hooks and their results."""

from __future__ import annotations

import importlib.metadata
import inspect
import operator
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import cast

import pluggy

from gradhomog._version import __version__
from gradhomog.errors import GradhomogError, PluginLoadError, did_you_mean
from gradhomog.registry import hooks
from gradhomog.registry.specs import KINDS, PluginInfo, Spec

HOOKS = tuple(name for name in vars(hooks) if name.startswith("gradhomog_"))


def load(info: PluginInfo, requirements: Iterable[str]) -> tuple[ModuleType, Spec]:
    """Import a plugin's module, check its hooks, and return the module and the result of the required hook.

    Args:
        requirements: the requirements in the metadata of its distribution.

    Raises:
        PluginLoadError: the plugin is invalid; the cause is chained.
    """
    _check_requirements(info, requirements)
    plugin = _import_module(info)
    manager = new_manager()  # of this plugin alone: an invalid one is never among others, and no other wraps its hook
    try:
        manager.register(plugin)
        manager.check_pending()
    except pluggy.PluginValidationError as cause:
        strays = [name for name in vars(plugin) if name.startswith("gradhomog_") and name not in HOOKS]
        hints = [f".{hint}" for name in strays if (hint := did_you_mean(name, HOOKS))]
        raise _load_error(info, f"has an invalid hook: {cause}{''.join(hints[:1])}") from cause
    found = [(hook.name, impl) for hook in manager.get_hookcallers(plugin) or () for impl in hook.get_hookimpls()]
    for name, impl in found:
        wraps = impl.wrapper or impl.hookwrapper
        if wraps and name != "gradhomog_make":
            reason = f"wraps the hook `{name}`, which is never called; only `gradhomog_make` can be wrapped"
            raise _load_error(info, reason)
        if impl.trylast and not wraps and name == "gradhomog_make":
            # Of two hooks with trylast, the one registered first is called first, and the first result is used.
            reason = (
                "has a hook `gradhomog_make` with trylast=True, which is never called, because gradhomog's own hook "
                "precedes it. Mark it with @gradhomog.hookimpl(wrapper=True), or without trylast"
            )
            raise _load_error(info, reason)
    return plugin, _read_spec(manager, info)


def new_manager() -> pluggy.PluginManager:
    """Return a plugin manager for the hooks of gradhomog."""
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    return manager


def _check_requirements(info: PluginInfo, requirements: Iterable[str]) -> None:
    # Imported here, so that `import gradhomog` stays fast.
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    for text in requirements:
        try:
            requirement = Requirement(text)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
            continue  # installers cannot read it either
        on_gradhomog = applies and canonicalize_name(requirement.name) == "gradhomog"
        if on_gradhomog and not requirement.specifier.contains(__version__, prereleases=True):
            raise PluginLoadError(
                f"{info} requires gradhomog {requirement.specifier}, but gradhomog {__version__} is installed. It was "
                f"not imported. Install a version of {info.distribution} for gradhomog {__version__}, or the version "
                f"of gradhomog that it requires, or remove '{info.name}'."
            )


def _import_module(info: PluginInfo) -> ModuleType:
    point = importlib.metadata.EntryPoint(info.name, info.module, f"gradhomog.{info.kind}")
    modules = set(sys.modules)
    changes: list[str] = []
    # Commands that list benchmarks train nothing, and must not import PyTorch.
    restored = _restore_torch(changes) if info.kind != "benchmarks" or "torch" in modules else nullcontext()
    try:
        with restored:
            plugin = point.load()
    except GradhomogError as cause:  # its message is complete
        raise PluginLoadError(f"{info} cannot be imported: {cause}") from cause
    except (Exception, SystemExit) as cause:  # SystemExit: a script without a guard must not end this process
        reinstall = f"Reinstall {info.distribution} with its dependencies, or remove '{info.name}'."
        advice = reinstall if isinstance(cause, ModuleNotFoundError) else info.advice
        raise _load_error(info, f"cannot be imported: {type(cause).__name__}: {cause}", advice) from cause
    if changes:
        package = info.module.partition(":")[0].partition(".")[0]
        for name in [name for name in set(sys.modules) - modules if name.partition(".")[0] == package]:
            del sys.modules[name]  # so that a second attempt raises again
        advice = f"All other methods would train with it; it was restored. {info.advice}"
        raise _load_error(info, f"changes {' and '.join(changes)} when it is imported", advice)
    if not isinstance(plugin, ModuleType):
        raise _load_error(info, f"must have a module as its entry point; got a {type(plugin).__name__}")
    return plugin


@contextmanager
def _restore_torch(changes: list[str]) -> Iterator[None]:
    """Restore the settings and functions of PyTorch after the context, and append the changes to a list."""
    from gradhomog import global_state  # imported here, so that listing plugins does not import PyTorch

    settings, functions = [*map(operator.call, global_state.READ_SETTINGS)], global_state.read_functions()
    try:
        yield
    finally:
        restored = global_state.restore_settings(settings), global_state.restore_functions(functions)
        changes += [change for change in restored if change]


def _read_spec(manager: pluggy.PluginManager, info: PluginInfo) -> Spec:
    """Return the result of the required hook of the only plugin of a manager."""
    hook_name, spec_type = KINDS[info.kind]
    hook = getattr(manager.hook, hook_name)
    if not hook.get_hookimpls():
        raise _load_error(info, f"has no hook `{hook_name}`: define it and mark it with @gradhomog.hookimpl")
    try:
        spec = hook(name=info.name)  # a module may describe several plugins
    except (Exception, SystemExit) as cause:
        raise _load_error(info, f"raised in `{hook_name}`: {type(cause).__name__}: {cause}") from cause
    if not isinstance(spec, spec_type):
        raise _load_error(info, f"must return a {spec_type.__name__} from `{hook_name}`; got {type(spec).__name__}")
    try:
        inspect.signature(spec.factory)  # it defines the options
    except (TypeError, ValueError) as cause:
        raise _load_error(
            info, f"must have a callable `factory` with a Python signature; got {spec.factory!r}"
        ) from cause
    return cast(Spec, spec)


def _load_error(info: PluginInfo, reason: str, advice: str = "") -> PluginLoadError:
    return PluginLoadError(f"{info} {reason} (gradhomog {__version__}). {advice or info.advice}")
