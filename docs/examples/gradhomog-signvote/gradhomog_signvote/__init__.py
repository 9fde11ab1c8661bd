"""The plugin `signvote` of gradhomog, imported at the first use of its name."""

from gradhomog import HomogenizerSpec, hookimpl
from gradhomog_signvote._signvote import SignVote

__all__ = ["SignVote", "gradhomog_homogenizer"]


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=SignVote,
        summary="zeroes the entries of each row whose sign loses a majority vote over the tasks",
        reference="the vote of signSGD: Bernstein et al. 2018, arXiv 1802.04434",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant"},
    )
