"""The registry of plugins: lists them by entry point without an import, loads them on first use, creates objects.

`load_setuptools_entrypoints` of pluggy is not used: one broken plugin stops it, a misspelled name loads nothing without
an error, and of two plugins with the same name it loads the one that the file system lists first.
"""

import functools
import importlib.metadata
import inspect
import operator
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from types import ModuleType
from typing import Any, cast

import pluggy

from gradhomog import errors
from gradhomog._version import __version__
from gradhomog.registry import specs
from gradhomog.registry.options import validate_options
from gradhomog.registry.specs import KINDS, PROJECT, DomainSpec, Kind, PluginInfo, Spec, hookimpl

HOOKS = tuple(name for name in vars(specs) if name.startswith("gradhomog_"))


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
        hints = [f".{hint}" for name in strays if (hint := errors.did_you_mean(name, HOOKS))]
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
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(specs)
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
            raise errors.PluginLoadError(
                f"{info} requires gradhomog {requirement.specifier}, but gradhomog {__version__} is installed. It was "
                f"not imported. Install a version of {info.distribution} for gradhomog {__version__}, or the version "
                f"of gradhomog that it requires, or remove '{info.name}'."
            )


def _import_module(info: PluginInfo) -> ModuleType:
    point = importlib.metadata.EntryPoint(info.name, info.module, f"gradhomog.{info.kind}")
    modules = set(sys.modules)

    def changed(changes: str) -> errors.PluginLoadError:
        package = info.module.partition(":")[0].partition(".")[0]
        for name in [name for name in set(sys.modules) - modules if name.partition(".")[0] == package]:
            del sys.modules[name]  # so that a second attempt raises again
        return _load_error(info, f"changes {changes} when it is imported", f"{RESTORED} {info.advice}")

    with _unchanged_torch(changed, generators=True):
        try:
            plugin = point.load()
        except errors.GradhomogError as cause:  # its message is complete
            raise errors.PluginLoadError(f"{info} cannot be imported: {cause}") from cause
        except (Exception, SystemExit) as cause:  # SystemExit: a script without a guard must not end this process
            reinstall = f"Reinstall {info.distribution} with its dependencies, or remove '{info.name}'."
            advice = reinstall if isinstance(cause, ModuleNotFoundError) else info.advice
            raise _load_error(info, f"cannot be imported: {type(cause).__name__}: {cause}", advice) from cause
    if not isinstance(plugin, ModuleType):
        raise _load_error(info, f"must have a module as its entry point; got a {type(plugin).__name__}")
    return plugin


RESTORED = "All other methods would train with it; it was restored."


@contextmanager
def _unchanged_torch(changed: Callable[[str], errors.PluginError], *, generators: bool = False) -> Iterator[None]:
    """Context after which settings and functions of PyTorch are as before; otherwise raise the error of the changes.

    Args:
        generators: also restore the random generators, without an error. Factories may draw from them.
    """
    from gradhomog import global_state  # imported here, so that listing plugins does not import PyTorch

    settings, functions = [*map(operator.call, global_state.READ_AT_LOADING)], global_state.read_functions()
    try:
        with global_state.restore_generators() if generators else nullcontext():
            yield
    finally:
        restored = global_state.restore_settings(settings), global_state.restore_functions(functions)
    if any(restored):
        raise changed(" and ".join(filter(None, restored)))


def _read_spec(manager: pluggy.PluginManager, info: PluginInfo) -> Spec:
    """Return the result of the required hook of the only plugin of a manager."""
    hook_name, spec_type = KINDS[info.kind]
    hook = getattr(manager.hook, hook_name)
    if not hook.get_hookimpls():
        raise _load_error(info, f"has no hook `{hook_name}`: define it and mark it with @gradhomog.hookimpl")
    advice = f"{RESTORED} {info.advice}"
    with _unchanged_torch(lambda changes: _load_error(info, f"changes {changes} in `{hook_name}`", advice)):
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


def _load_error(info: PluginInfo, reason: str, advice: str = "") -> errors.PluginLoadError:
    return errors.PluginLoadError(f"{info} {reason} (gradhomog {__version__}). {advice or info.advice}")


class Registry:
    """The plugins of the installed distributions.

    Args:
        entry_points: the entry points of plugins; by default those of all installed distributions in the groups
            `gradhomog.homogenizers`, `gradhomog.learners` and so on, for all `KINDS`.
        disabled: selectors (`name` or `distribution:name`) of disabled plugins; by default those in the environment
            variable GRADHOMOG_DISABLE, separated by commas.

    Programs normally use `gradhomog.registry.installed()`; tests create other registries.
    """

    def __init__(
        self, entry_points: Iterable[importlib.metadata.EntryPoint] | None = None, disabled: Iterable[str] | None = None
    ) -> None:
        if disabled is None:
            disabled = os.environ.get("GRADHOMOG_DISABLE", "").split(",")
        self._preferred: frozenset[str] = frozenset()
        self._disabled = frozenset(text.strip() for text in disabled if text.strip())
        self._entry_points = None if entry_points is None else tuple(entry_points)
        self._added: dict[str, importlib.metadata.Distribution] = {}
        self._loaded: dict[PluginInfo, Spec] = {}
        self.manager = new_manager()
        self.manager.register(_DefaultFactory(), name="gradhomog")

    # -- listing: metadata only ---------------------------------------------------------------------------------------

    @functools.cached_property
    def _plugins(self) -> dict[PluginInfo, importlib.metadata.Distribution | None]:
        points = [point for dist in self._added.values() for point in dist.entry_points]
        if self._entry_points is None:
            every = importlib.metadata.entry_points()  # reads the metadata of all distributions
            points += [point for kind in KINDS for point in every.select(group=f"{PROJECT}.{kind}")]
        else:
            points += self._entry_points
        found: dict[tuple[str, str, str], tuple[PluginInfo, importlib.metadata.Distribution | None]] = {}
        for point in points:
            project, _, kind = point.group.partition(".")
            if project == PROJECT and kind in KINDS:
                distribution, version = _name_and_version(point.dist)
                disabled = not self._disabled.isdisjoint({point.name, f"{distribution}:{point.name}"})
                info = PluginInfo(point.name, distribution, version, point.value, kind, disabled)
                # A distribution may be on the path twice (editable and installed): the first one is imported.
                found.setdefault((kind, distribution, point.name), (info, point.dist))
        known = {name for info, _ in found.values() for name in (info.name, info.selector)}
        for unknown in sorted(self._disabled - known):
            hint = errors.did_you_mean(unknown, [name for name in known if (":" in name) == (":" in unknown)])
            warnings.warn(f"GRADHOMOG_DISABLE: no installed plugin is named {unknown!r}.{hint}", stacklevel=2)
        return dict(sorted(found.values(), key=lambda entry: entry[0]))

    def add(self, distribution: importlib.metadata.Distribution) -> None:
        """Add the plugins of a distribution, in place of an earlier distribution of that name. For tests."""
        self._added[distribution.name] = distribution
        self.__dict__.pop("_plugins", None)
        for info in [info for info in self._loaded if info.distribution == distribution.name]:
            del self._loaded[info]
            if self.manager.has_plugin(str(info)):
                self.manager.unregister(name=str(info))

    def list(self, kind: Kind) -> tuple[PluginInfo, ...]:
        """Return all plugins of a kind, sorted by name, including disabled ones; imports none of them."""
        if kind not in KINDS:
            raise errors.OptionError(f"`kind` must be one of {', '.join(map(repr, KINDS))}; got {kind!r}.")
        return tuple(info for info in self._plugins if info.kind == kind)

    def names(self, kind: Kind) -> tuple[str, ...]:
        """Return the names that users can write; `distribution:name` if several distributions have the same name."""
        infos = [info for info in self.list(kind) if not info.disabled]
        counts = Counter(info.name for info in infos)
        return tuple(info.name if counts[info.name] == 1 else info.selector for info in infos)

    def find(self, kind: Kind, selector: str) -> PluginInfo:
        """Return the plugin with the name `name` or `distribution:name`; imports nothing.

        Raises:
            UnknownPluginError: no distribution has it; the message suggests a similar name.
            AmbiguousPluginError: several distributions have it; the message names them all.
            DisabledPluginError: GRADHOMOG_DISABLE blocks it.
        """
        matches = [info for info in self.list(kind) if selector in (info.name, info.selector)]
        enabled = [info for info in matches if not info.disabled]
        if len(enabled) > 1:
            enabled = [info for info in enabled if info.selector in self._preferred] or enabled
        if len(enabled) == 1:
            return enabled[0]
        if enabled:
            offers = " and ".join(f"{info.distribution} {info.version}" for info in enabled)
            choices = " or ".join(repr(info.selector) for info in enabled)
            raise errors.AmbiguousPluginError(
                f"{kind[:-1]} '{selector}' exists in several distributions: {offers}. Write {choices}."
            )
        if matches:
            raise errors.DisabledPluginError(
                f"{matches[0]} is disabled by GRADHOMOG_DISABLE={','.join(sorted(self._disabled))}. "
                "Remove it from that variable to use it."
            )
        names = self.names(kind)
        hint = errors.did_you_mean(selector, [*names, *(info.selector for info in self.list(kind))])
        if others := [info.kind for info in self._plugins if selector in (info.name, info.selector)]:
            hint = f" It is the name of a{'n' * (others[0][0] in 'aeiou')} {others[0][:-1]}."
        listed = ", ".join(names) or "none"
        raise errors.UnknownPluginError(f"unknown {kind[:-1]} '{selector}'.{hint} Installed: {listed}.")

    @contextmanager
    def preferring(self, selectors: Iterable[str]) -> Iterator[None]:
        """Resolve a name that several distributions have to the one whose selector is listed, within the context."""
        before, self._preferred = self._preferred, frozenset(selectors)
        try:
            yield
        finally:
            self._preferred = before

    # -- loading: on use ----------------------------------------------------------------------------------------------

    def load(self, kind: Kind, selector: str) -> tuple[PluginInfo, Spec]:
        """Import a plugin's module, check its hooks, and return its spec.

        Raises:
            PluginLoadError: the import fails, or the hook is missing, misspelled, raises or returns the wrong type. The
                cause is chained, and the plugin is not registered.
        """
        info = self.find(kind, selector)
        if info not in self._loaded:
            dist = self._plugins[info]
            plugin, self._loaded[info] = load(info, (dist and dist.requires) or ())
            if not self.manager.is_registered(plugin):  # a module may offer plugins of several kinds
                self.manager.register(plugin, name=str(info))
        return info, self._loaded[info]

    # -- making -------------------------------------------------------------------------------------------------------

    def make(
        self, kind: Kind, selector: str, options: Mapping[str, Any], *arguments: Any, **supplied: Any
    ) -> tuple[PluginInfo, Spec, Any]:
        """Load a plugin, check the user's `options` against its factory's signature, and create the object.

        `arguments` and `supplied` come from gradhomog (an encoder, a size); they are not options. The object is created
        by the hook `gradhomog_make`, which registered plugins may wrap.

        Raises:
            OptionError: an option is unknown, has the wrong type or is rejected by the factory.
            PluginRunError: the factory raised another exception.
        """
        info, spec = self.load(kind, selector)
        bound = validate_options(spec, info.name, options)  # without `scale`, which the pipeline applies
        if isinstance(spec, DomainSpec) and spec.variants and arguments and arguments[0] not in spec.variants:
            variant = arguments[0]
            hint = errors.did_you_mean(variant, spec.variants, f"`{info.name}:{{}}`")
            found = repr(variant) if variant else "nothing after the name"
            known = ", ".join(spec.variants)
            raise errors.OptionError(f"`{info.name}` needs one of the variants {known}; got {found}.{hint}")
        impls = reversed(self.manager.hook.gradhomog_make.get_hookimpls())  # the outermost first
        wrappers = [self._owner(impl.plugin) for impl in impls if not isinstance(impl.plugin, _DefaultFactory)]

        def changed(changes: str) -> errors.PluginRunError:
            hooks = "".join(f", or `gradhomog_make` of {name}," for name, _ in wrappers)
            return errors.PluginRunError(f"the factory of {info}{hooks} changes {changes}. {RESTORED} {info.advice}")

        with _unchanged_torch(changed):
            try:
                made = self.manager.hook.gradhomog_make(spec=spec, arguments=arguments, options={**bound, **supplied})
            except errors.GradhomogError:
                raise
            except (Exception, SystemExit) as cause:
                raise errors.PluginRunError(self._describe_failure(info, cause)) from cause
        if made is None and wrappers:
            raise errors.PluginRunError(
                f"`gradhomog_make` of {' and '.join(name for name, _ in wrappers)} returned None for {info}: a wrapper "
                f"must return the result of its `yield`. {wrappers[0][1]}"
            )
        return info, spec, made

    def _describe_failure(self, info: PluginInfo, cause: BaseException) -> str:
        if not errors.raised_in(cause, _DefaultFactory.gradhomog_make):  # the error is not from the factory
            for impl in self.manager.hook.gradhomog_make.get_hookimpls():
                if errors.raised_in(cause, impl.function):
                    owner, advice = self._owner(impl.plugin)
                    return f"{owner} raised in `gradhomog_make` for {info}: {errors.describe_error(cause)}. {advice}"
        return f"the factory of {info} raised {errors.describe_error(cause)}. {info.advice}"

    def _owner(self, plugin: object) -> tuple[str, str]:
        """Return the name of the plugin that a hook belongs to, and the advice for an error of it."""
        name = self.manager.get_name(plugin)
        for info in self._loaded:
            if str(info) == name:
                return name, info.advice
        return f"plugin {name}", "Correct it, or do not register it."


def _name_and_version(distribution: importlib.metadata.Distribution | None) -> tuple[str, str]:
    """Return name and version; `"?"` if unknown, as in a folder without metadata after a broken uninstall."""
    # Distributions of the backport `importlib_metadata` raise instead of returning None.
    with suppress(FileNotFoundError, KeyError):
        if distribution is not None:
            return distribution.name or "?", distribution.version or "?"
    return "?", "?"


class _DefaultFactory:
    """The default `gradhomog_make`; called last, so that plugins can wrap or replace it."""

    @hookimpl(trylast=True)
    def gradhomog_make(self, spec: Spec, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return spec.factory(*arguments, **options)


_active_registries: list[Registry] = []


def installed() -> Registry:
    """Return the registry of the installed distributions, created once; within `using`, the registry passed to it."""
    if not _active_registries:
        _active_registries.insert(0, Registry())  # below a registry that another thread uses meanwhile
    return _active_registries[-1]


@contextmanager
def using(registry: Registry) -> Iterator[Registry]:
    """Resolve all plugin names of the process by this registry within the context; for tests."""
    _active_registries.append(registry)
    try:
        yield registry
    finally:
        _active_registries.pop()


def available(kind: Kind = "homogenizers") -> tuple[str, ...]:
    """Return the names of the installed plugins of a kind; imports none of them.

    Args:
        kind: `"homogenizers"`, `"learners"`, `"domains"`, `"problems"` or `"observers"`.

    >>> "pcgrad" in available()
    True
    """
    return installed().names(kind)
