"""The hooks that a plugin module can implement, and the decorator that marks an implementation.

Hooks are called when an object is created, never during a training step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from gradhomog.registry.specs import (
        BenchmarkSpec,
        DomainSpec,
        ExecutorSpec,
        HomogenizerSpec,
        LearnerSpec,
        NetworkSpec,
        ObserverSpec,
        ProblemSpec,
        Spec,
    )

PROJECT = "gradhomog"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def gradhomog_homogenizer() -> HomogenizerSpec:
    """Describe this module's homogenizer. Required in modules of the entry-point group `gradhomog.homogenizers`."""
    raise NotImplementedError


@hookspec(firstresult=True)
def gradhomog_learner() -> LearnerSpec:
    """Describe this module's learner. Required in modules of the entry-point group `gradhomog.learners`."""
    raise NotImplementedError


@hookspec(firstresult=True)
def gradhomog_domain() -> DomainSpec:
    """Describe this module's domain. Required in modules of the entry-point group `gradhomog.domains`."""
    raise NotImplementedError


@hookspec(firstresult=True)
def gradhomog_problem(name: str) -> ProblemSpec:
    """Describe a multi-task problem. Required in modules of the entry-point group `gradhomog.problems`."""
    raise NotImplementedError


@hookspec(firstresult=True)
def gradhomog_network(name: str) -> NetworkSpec:
    """Describe a network. Required in modules of the entry-point group `gradhomog.networks`."""
    raise NotImplementedError


@hookspec(firstresult=True)
def gradhomog_benchmark(name: str) -> BenchmarkSpec:
    """Describe a benchmark. Required in modules of the entry-point group `gradhomog.benchmarks`."""
    raise NotImplementedError


@hookspec(firstresult=True)
def gradhomog_observer() -> ObserverSpec:
    """Describe this module's observer. Required in modules of the entry-point group `gradhomog.observers`."""
    raise NotImplementedError


@hookspec(firstresult=True)
def gradhomog_executor(name: str) -> ExecutorSpec:
    """Describe an executor. Required in modules of the entry-point group `gradhomog.executors`."""
    raise NotImplementedError


@hookspec(firstresult=True)
def gradhomog_make(spec: Spec, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Create the object that a spec describes: by default `spec.factory(*arguments, **options)`.

    A plugin can wrap this hook (`@hookimpl(wrapper=True)`) to time, log or decorate the creation of objects.
    """
