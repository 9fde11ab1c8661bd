"""Plugins in metadata, the hooks that their modules implement, and the descriptions that hooks return.

Hooks are called when an object is created, never during a training step. This module imports neither torch nor the
classes that factories create, so that `gradhomog list` starts fast.
"""

# mypy: disable-error-code="empty-body"
# A specification of a hook has a docstring only.

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pluggy

from gradhomog.errors import PluginLoadError, PluginRunError

STATISTICS = frozenset({"losses", "norms", "gramian", "jacobian", "features", "kernel_traces"})
"""Statistics that a homogenizer can declare in `needs`. Each is computed once per step, and only if declared."""

TRAITS = frozenset(
    {
        "differentiable",  # the direction is differentiable in rows and losses: gradcheck passes
        "stateful",  # `state_names` is not empty
        "stochastic",  # draws from `step.generator`
        "momentum",  # averages rows over steps: only its first step on identical tasks equals the plain learner's
        "permutation_equivariant",  # the order of the tasks has no effect
        "loss_scale_invariant",  # a common factor of the losses, 1e-12 to 1e12, has no effect
        "scale_equivariant",  # a common factor of the rows multiplies the direction
        "rotation_equivariant",  # a rotation of parameter space rotates the direction: it depends on inner products
        "per_tensor",  # the direction in each tensor of parameters is that of the rows in this tensor alone
        "non_conflicting",  # the direction has no negative inner product with any row
        "orthogonal",  # `transform` is a rotation of feature space: linear, preserves inner products, determinant one
    }
)
"""Properties that a homogenizer can claim for its default options. The conformance kit tests every claim."""

LEARNER_TRAITS = frozenset(
    {
        "exact_rows"  # a row is the full gradient of the task's query loss w.r.t. the parameters (finite differences)
    }
)
"""Properties that a learner can claim."""


Observer = Callable[[str, Mapping[str, Any]], None]
"""A function that is called as `observer(event, record)` for every record of a run; see `gradhomog_observer`."""


def _check_names(values: Iterable[str], allowed: frozenset[str], kind: str) -> frozenset[str]:
    """Return the names as a frozenset; raise if one is not allowed."""
    if isinstance(values, str):
        raise PluginLoadError(f"a {kind} must be in a set: {{{values!r}}}; got the string {values!r}.")
    names = frozenset(values)
    if unknown := sorted(names - allowed):
        raise PluginLoadError(
            f"unknown {kind} {', '.join(map(repr, unknown))}; the valid ones are {', '.join(sorted(allowed))}."
        )
    return names


@dataclass(frozen=True)
class Spec:
    """Base class of the results of hooks.

    `supplied` are the parameters of the factory that gradhomog supplies; users cannot set them as options.
    """

    factory: Callable[..., Any]
    summary: str
    reference: str = ""

    supplied: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class HomogenizerSpec(Spec):
    """Returned by the hook `gradhomog_homogenizer`.

    Attributes:
        factory: called with the user's options as keywords; returns a `Homogenizer`, or, for a preset, a list of
            entries that `gradhomog.pipeline` accepts. Its signature defines the options; annotations such as
            `Annotated[float, annotated_types.Gt(0)]` and `Literal["a", "b"]` define their ranges.
        summary: one line for `gradhomog list`.
        reference: authors, year, DOI or arXiv number.
        traits: claims, from `TRAITS`.
        needs: statistics read in any stage, from `STATISTICS`. Reading an undeclared statistic is an error.
        last: True if it must be the last of a pipeline, because its guarantee is about the direction itself. A pipeline
            with another homogenizer after it is rejected.
        max_tasks: the largest number of tasks that memory and time allow; a step with more tasks causes an error before
            any allocation. None: no limit.
    """

    traits: Set[str] = field(default_factory=frozenset)
    needs: Set[str] = field(default_factory=frozenset)
    last: bool = False
    max_tasks: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "traits", _check_names(self.traits, TRAITS, "trait"))
        object.__setattr__(self, "needs", _check_names(self.needs, STATISTICS, "statistic in `needs`"))


@dataclass(frozen=True)
class LearnerSpec(Spec):
    """Returned by the hook `gradhomog_learner`.

    Attributes:
        factory: called as `factory(encoder, head, homogenizers=pipeline, **options)`; returns a `Learner`.
        summary, reference: as in `HomogenizerSpec`.
        traits: claims, from `LEARNER_TRAITS`.
    """

    traits: Set[str] = field(default_factory=frozenset)

    supplied = ("encoder", "head", "homogenizers")

    def __post_init__(self) -> None:
        object.__setattr__(self, "traits", _check_names(self.traits, LEARNER_TRAITS, "trait"))


@dataclass(frozen=True)
class DomainSpec(Spec):
    """Returned by the hook `gradhomog_domain`.

    Attributes:
        factory: called as `factory(variant, size=size, **options)`, where `variant` is the text after the colon in the
            domain's name (`""` if there is none) and `size` the side of images in pixels; returns a `Domain`.
        summary, reference: as in `HomogenizerSpec`.
        variants: the names accepted after the colon, for listings and suggestions; others raise an error. Empty if any
            text is accepted.
    """

    variants: tuple[str, ...] = ()

    supplied = ("variant", "size")


@dataclass(frozen=True)
class ObserverSpec(Spec):
    """Returned by the hook `gradhomog_observer`.

    Attributes:
        factory: called as `factory(config, folder, **options)` when a run starts or resumes, in the process that
            trains it. `config` is a copy of the run's configuration as nested dicts, `folder` the `pathlib.Path` of its
            folder. Returns an `Observer`.
        summary, reference: as in `HomogenizerSpec`.
    """

    factory: Callable[..., Observer]

    supplied = ("config", "folder")


@dataclass(frozen=True)
class ProblemSpec(Spec):
    """Returned by the hook `gradhomog_problem`.

    Attributes:
        factory: called as `factory(run, **options)` with a `ProblemRun` and the other keys of `[problem]`; returns
            `MultiTaskData`, or a `Problem`.
        summary, reference: as in `HomogenizerSpec`.
        defaults: defaults of the other keys of the run file, as nested tables, or a function of the options that
            returns them.
        unused_keys: key paths of the run file that the problem does not use, besides those of episodes and learners.
        single_task: True if the method "single-task" exists, a separate network for each task, as for `MultiTaskData`.
        deterministic: True if nothing is random, so that all seeds give the same result.
        suite: how `gradhomog suite --problem NAME` uses the problem: `question`, a sentence; `scaled_task`, the task
            whose loss is multiplied; `steps`; `rates`, the learning rates to choose from; and optionally `best` and
            `tolerance`, see `gradhomog.experiments.suite.problems.SuiteProblem`. Empty: `--problem` rejects it.
    """

    # Not hashed: options are cached by spec, and nested tables have no hash.
    defaults: Mapping[str, Any] | Callable[[Mapping[str, Any]], Mapping[str, Any]] = field(
        default_factory=dict, hash=False
    )
    unused_keys: tuple[str, ...] = ()
    single_task: bool = True
    deterministic: bool = False
    suite: Mapping[str, Any] = field(default_factory=dict, hash=False)

    supplied = ("run",)


Kind = Literal["homogenizers", "learners", "domains", "problems", "observers"]

KINDS: dict[Kind, tuple[str, type[Any]]] = {
    "homogenizers": ("gradhomog_homogenizer", HomogenizerSpec),
    "learners": ("gradhomog_learner", LearnerSpec),
    "domains": ("gradhomog_domain", DomainSpec),
    "problems": ("gradhomog_problem", ProblemSpec),
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
            text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in getattr(self, name))
            object.__setattr__(self, name, text)

    @property
    def selector(self) -> str:
        """The unambiguous name, of distribution and name, separated by a colon."""
        return f"{self.distribution}:{self.name}"

    @property
    def advice(self) -> str:
        """The last sentence of an error that the plugin caused."""
        return f"Report it to the authors of {self.distribution}, or remove '{self.name}'."

    def checked(self, made: Any, *types: type) -> Any:
        """Return what the factory of this plugin has made; raise `PluginRunError` if it is of another type."""
        if not isinstance(made, types):
            names = " or ".join(f"gradhomog.{each.__name__}" for each in types)
            raise PluginRunError(
                f"the factory of {self} must return a {names}; got {type(made).__name__}. {self.advice}"
            )
        return made

    def __str__(self) -> str:
        return f"{self.kind[:-1]} '{self.name}' of {self.distribution} {self.version} ({self.module})"


PROJECT = "gradhomog"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def gradhomog_homogenizer() -> HomogenizerSpec:
    """Describe this module's homogenizer. Required in modules of the entry-point group `gradhomog.homogenizers`."""


@hookspec(firstresult=True)
def gradhomog_learner() -> LearnerSpec:
    """Describe this module's learner. Required in modules of the entry-point group `gradhomog.learners`."""


@hookspec(firstresult=True)
def gradhomog_domain() -> DomainSpec:
    """Describe this module's domain. Required in modules of the entry-point group `gradhomog.domains`."""


@hookspec(firstresult=True)
def gradhomog_problem(name: str) -> ProblemSpec:
    """Describe a multi-task problem. Required in modules of the entry-point group `gradhomog.problems`."""


@hookspec(firstresult=True)
def gradhomog_observer() -> ObserverSpec:
    """Describe this module's observer. Required in modules of the entry-point group `gradhomog.observers`."""


@hookspec(firstresult=True)
def gradhomog_make(spec: Spec, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Create the object that a spec describes: by default `spec.factory(*arguments, **options)`.

    A plugin can wrap this hook (`@hookimpl(wrapper=True)`) to time, log or decorate the creation of objects.
    """
