"""The N×N programs that methods share: float64, exact to rounding, free of scale, batched, differentiable twice.

Every function takes Gramians `[..., tasks, tasks]` of any floating dtype and returns float64 weights `[..., tasks]`.
"""

from gradhomog.solvers.bargaining import bargaining_weights
from gradhomog.solvers.conflict_averse import conflict_averse_weights
from gradhomog.solvers.dual_cone import dual_cone_weights
from gradhomog.solvers.minimum_norm import minimum_norm_weights

__all__ = ["bargaining_weights", "conflict_averse_weights", "dual_cone_weights", "minimum_norm_weights"]
