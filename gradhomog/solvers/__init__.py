"""Solvers of small N×N programs that methods share: float64, scale-invariant, batched, twice differentiable.

Every function takes Gramians `[..., tasks, tasks]` of any floating dtype and returns a `Solution`: float64 weights
`[..., tasks]`, and a flag for convergence.
"""

from gradhomog.solvers.bargaining import bargaining_weights
from gradhomog.solvers.conflict_averse import conflict_averse_weights
from gradhomog.solvers.dual_cone import dual_cone_weights
from gradhomog.solvers.minimum_norm import minimum_norm_weights
from gradhomog.solvers.scaling import Solution, gramian_rounding

__all__ = [
    "Solution",
    "bargaining_weights",
    "conflict_averse_weights",
    "dual_cone_weights",
    "gramian_rounding",
    "minimum_norm_weights",
]
