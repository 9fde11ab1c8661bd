"""The hooks that a plugin module can implement, and the marker to do it with.

pluggy assembles, plain objects run: hooks are called when something is built, never inside a training step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from gradhomog.specs import DomainSpec, HomogenizerSpec, LearnerSpec, ObserverSpec, Spec

PROJECT = "gradhomog"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def gradhomog_homogenizer() -> HomogenizerSpec:
    """Describe this module's homogenizer. Required of modules in the entry-point group `gradhomog.homogenizers`."""
    raise NotImplementedError


@hookspec
def gradhomog_learner() -> LearnerSpec:
    """Describe the learner of this module. Required of modules in the entry-point group `gradhomog.learners`."""
    raise NotImplementedError


@hookspec
def gradhomog_domain() -> DomainSpec:
    """Describe the domain of this module. Required of modules in the entry-point group `gradhomog.domains`."""
    raise NotImplementedError


@hookspec
def gradhomog_observer() -> ObserverSpec:
    """Describe the observer of this module. Required of modules in the entry-point group `gradhomog.observers`."""
    raise NotImplementedError


@hookspec(firstresult=True)
def gradhomog_make(spec: Spec, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Make the object that a spec describes: by default `spec.factory(*arguments, **options)`.

    Meant to be wrapped (`@hookimpl(wrapper=True)`) by who wants to time, log or decorate what is made.
    """
