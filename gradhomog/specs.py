"""Descriptions that plugins return from their hooks: factory, summary, reference, traits.

This module imports neither torch nor the classes that factories make: the registry and `gradhomog list` read it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

from gradhomog.errors import PluginLoadError

STATISTICS = frozenset({"losses", "norms", "gramian", "jacobian", "features"})
"""Statistics that a homogenizer can declare as needed: each is computed once per step, and only if one needs it."""

TRAITS = frozenset(
    {
        "differentiable",  # the direction is differentiable in rows and losses: gradcheck passes
        "stateful",  # `state_names` is not empty
        "stochastic",  # draws from `step.generator`
        "momentum",  # averages rows over steps: only its first step on identical tasks is that of the plain learner
        "permutation_equivariant",  # the tasks' order changes nothing
        "loss_scale_invariant",  # a common factor of the losses, 1e-12 to 1e12, changes nothing
        "scale_equivariant",  # a common factor of the rows is the same factor of the direction
        "rotation_equivariant",  # a rotation of parameter space rotates the direction: only inner products count
        "non_conflicting",  # the direction has no negative inner product with any row
        "orthogonal",  # `transform` is a rotation of feature space: linear, keeps inner products, determinant one
    }
)
"""Claims about a homogenizer with default options. The conformance kit tests each one that is made."""

LEARNER_TRAITS = frozenset(
    {
        "exact_rows",  # a row is the whole gradient of the task's query loss w.r.t. the parameters: finite differences
    }
)
"""Claims about a learner."""


Observer = Callable[[str, Mapping[str, Any]], None]
"""Called as `observer(event, record)` with every record that a run writes; see `gradhomog_observer`."""


class Seeded(Protocol):
    """An object with a seed, such as a homogenizer."""

    seed: int


def _subset(given: Iterable[str], allowed: frozenset[str], what: str) -> frozenset[str]:
    if isinstance(given, str):
        raise PluginLoadError(f"a {what} must be in a set: {{{given!r}}}; got the text {given!r}.")
    names = frozenset(given)
    if "rows" in names - allowed:
        raise PluginLoadError(f"{what} 'rows' is of gradhomog 0.1; write 'jacobian'.")
    if unknown := sorted(names - allowed):
        raise PluginLoadError(f"unknown {what} {', '.join(map(repr, unknown))}; known: {', '.join(sorted(allowed))}.")
    return names


@dataclass(frozen=True)
class HomogenizerSpec:
    """Returned by the hook `gradhomog_homogenizer`.

    Attributes:
        factory: called with the user's options as keywords; returns a `Homogenizer`, or, as a preset, a list of entries
            as `gradhomog.pipeline` accepts them. Its signature is the list of options; annotations such as
            `Annotated[float, annotated_types.Gt(0)]` and `Literal["a", "b"]` are their ranges.
        summary: one line for `gradhomog list`.
        reference: authors, year, DOI or arXiv number.
        traits: claims, from `TRAITS`.
        needs: statistics read in any stage, from `STATISTICS`. Reading one that is not declared is an error.
        last: whether it must be the last of a pipeline, because its promise is about the step itself. A pipeline with
            another one after it is refused.
        max_tasks: the largest number of tasks that memory and time allow; more are refused before any is allocated.
            None without a limit.
    """

    factory: Callable[..., Any]
    summary: str
    reference: str = ""
    traits: Set[str] = field(default_factory=frozenset)
    needs: Set[str] = field(default_factory=frozenset)
    last: bool = False
    max_tasks: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "traits", _subset(self.traits, TRAITS, "trait"))
        object.__setattr__(self, "needs", _subset(self.needs, STATISTICS, "statistic in `needs`"))


@dataclass(frozen=True)
class LearnerSpec:
    """Returned by the hook `gradhomog_learner`.

    Attributes:
        factory: called as `factory(encoder, head, homogenizers=pipeline, **options)`; returns a `Learner`.
        summary, reference: as in `HomogenizerSpec`.
        traits: claims, from `LEARNER_TRAITS`.
    """

    factory: Callable[..., Any]
    summary: str
    reference: str = ""
    traits: Set[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        object.__setattr__(self, "traits", _subset(self.traits, LEARNER_TRAITS, "trait"))


@dataclass(frozen=True)
class DomainSpec:
    """Returned by the hook `gradhomog_domain`.

    Attributes:
        factory: called as `factory(variant, size=size, **options)`, where `variant` is what the user wrote after the
            colon (`""` if nothing) and `size` the side of images in pixels; returns a `Domain`.
        summary, reference: as in `HomogenizerSpec`.
        variants: the names accepted after the colon, for listings and suggestions; empty if any text is accepted.
    """

    factory: Callable[..., Any]
    summary: str
    reference: str = ""
    variants: tuple[str, ...] = ()


@dataclass(frozen=True)
class ObserverSpec:
    """Returned by the hook `gradhomog_observer`.

    Attributes:
        factory: called as `factory(config, folder, **options)` when a run begins, or goes on, in the process that
            trains it, where `config` is the run's own configuration as nested dicts, a copy, and `folder` the
            `pathlib.Path` of its folder. Returns an `Observer`.
        summary, reference: as in `HomogenizerSpec`.
    """

    factory: Callable[..., Observer]
    summary: str
    reference: str = ""


Spec = HomogenizerSpec | LearnerSpec | DomainSpec | ObserverSpec
SIGNATURE_ONLY: dict[type[Any], tuple[str, ...]] = {
    HomogenizerSpec: (),
    LearnerSpec: ("encoder", "head", "homogenizers"),
    DomainSpec: ("variant", "size"),
    ObserverSpec: ("config", "folder"),
}
"""Parameters of each kind of factory that the host supplies; they are no options of the user."""
