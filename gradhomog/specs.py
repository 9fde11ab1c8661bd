"""What a plugin tells about itself: a factory, a sentence, a source, and its claims.

No torch here: `gradhomog show` and the registry read these without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gradhomog.errors import PluginLoadError

if TYPE_CHECKING:
    from gradhomog.domains import Domain
    from gradhomog.homogenizer import Homogenizer
    from gradhomog.learners import Learner

STATISTICS = frozenset({"losses", "norms", "gramian", "rows", "features"})
"""What a homogenizer can need: the host computes each once per step, and only if something needs it."""

TRAITS = frozenset(
    {
        "differentiable",  # the direction is differentiable in rows and losses: gradcheck passes
        "stateful",  # something is carried from step to step: state_dict is not empty
        "stochastic",  # draws from its own generator
        "momentum",  # averages rows over steps: only its first step on identical tasks is that of the plain learner
        "permutation_equivariant",  # the tasks' order changes nothing
        "scale_equivariant",  # a common factor of the rows is the same factor of the direction
        "rotation_equivariant",  # a rotation of parameter space rotates the direction: only inner products count
        "non_conflicting",  # the direction has no negative inner product with any row
        "orthogonal",  # `transform` is a rotation of feature space: linear, keeps inner products, determinant one
    }
)
"""What a homogenizer can claim, of its defaults. A claim is tested; what is not claimed is not promised."""

LEARNER_TRAITS = frozenset(
    {
        "exact_rows",  # a row is the whole derivative of the task's query loss by the parameters: finite differences
    }
)
"""What a learner can claim."""


def _subset(given: Iterable[str], allowed: frozenset[str], what: str) -> frozenset[str]:
    if isinstance(given, str):
        raise PluginLoadError(f"a {what} must stand in a set: {{{given!r}}}; got the text {given!r}.")
    names = frozenset(given)
    if unknown := sorted(names - allowed):
        raise PluginLoadError(f"unknown {what} {', '.join(map(repr, unknown))}; known: {', '.join(sorted(allowed))}.")
    return names


@dataclass(frozen=True)
class HomogenizerSpec:
    """Returned by the hook `gradhomog_homogenizer`.

    Attributes:
        factory: called with the user's options as keywords; returns a `Homogenizer`, or, as a preset, a list of entries
            as `gradhomog.pipeline` takes them. Its signature *is* the list of options.
        summary: one line for `gradhomog list`.
        reference: where the method comes from: authors, year, DOI or arXiv number.
        traits: claims, from `TRAITS`.
        needs: statistics read in any stage, from `STATISTICS`. Reading one that is not declared is an error.
        last: whether it must be the last of a pipeline, because its promise is about the step itself. A pipeline in
            which another one comes after it is refused.
    """

    factory: Callable[..., Homogenizer | Sequence[Any]]
    summary: str
    reference: str = ""
    traits: Set[str] = field(default_factory=frozenset)
    needs: Set[str] = field(default_factory=frozenset)
    last: bool = False

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

    factory: Callable[..., Learner]
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
        variants: the names accepted after the colon, for listings and suggestions; empty if any text is.
    """

    factory: Callable[..., Domain]
    summary: str
    reference: str = ""
    variants: tuple[str, ...] = ()


Spec = HomogenizerSpec | LearnerSpec | DomainSpec
SIGNATURE_ONLY: dict[type[Any], tuple[str, ...]] = {
    HomogenizerSpec: (),
    LearnerSpec: ("encoder", "head", "homogenizers"),
    DomainSpec: ("variant", "size"),
}
"""Parameters of each kind of factory that the host supplies: they are not options of the user."""
