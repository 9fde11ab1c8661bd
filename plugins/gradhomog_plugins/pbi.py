"""Penalty-based boundary intersection (PBI): descend along a ray of losses given by a preference."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, hookimpl
from gradhomog_plugins import EQUIVARIANT, _per_task
from gradhomog_plugins._per_task import Preferences

# Losses on the ray up to this part of their distance from z have no distance from the ray: the rounding of float32.
ON_THE_RAY = 1e-6


class PBI(Homogenizer):
    """Weights from the derivatives of the distance along a ray plus θ times the distance from the ray.

        f = L − z,  u = r/‖r‖,  d_1 = ⟨u, f⟩,  d_2 = ‖f − d_1 u‖
        v_i = max(0, ∂(d_1 + θ d_2)/∂L_i) = max(0, u_i + θ (f_i − d_1 u_i)/d_2)
        d = 1/N Σ_i ω_i g_i,  ω_i = v_i / mean_j v_j;  paper's scale: d = Σ_i v_i g_i

    Args:
        penalty: θ. With 0 the weights are the preference; for large values only tasks above the ray have a weight.
        preferences: r, the ratio in which the losses should end: a list by slot, or a dict by domain with the entry
            `"*"` for other domains (1 without it). By default all equal.
        ideal: z, lower bounds of the losses, from which the ray starts: one number, or a list or a dict as for
            `preferences` (0 where missing).

    Use it when the losses should end in a given ratio, on a Pareto front of any shape, and have a common unit. A large
    preference permits a *large* loss of its task, unlike in `static`. It is harmful where the losses of the ratio
    cannot be reached: the losses then end at other points of the boundary, or not on the front. It does not resolve
    conflicts. Near the ray the weights alternate between the tasks; the step should then be small.

    Acts on rows: shared parameters receive the gradient of the weighted losses; each head of a multi-task network
    receives the unweighted gradient of its loss. Losses may have any sign. Losses on the ray, up to 1e-6 of their
    distance from z, have the weights u; at least one v_i is positive.

    Differentiable in rows and losses, except where a weight becomes zero and near the ray.

    State: none.

    Cost: O(N).

    Source: Zhang and Li 2007, "MOEA/D: A Multiobjective Evolutionary Algorithm Based on Decomposition", section II.C,
    for gradients of minimized losses.

    Deviations: (1) A negative derivative counts as zero. The gradient of the paper's function *ascends* the losses
    below the ray, and where the derivatives have a sum of zero no factor gives weights of mean one. Where all
    derivatives are positive, the paper's scale is that gradient. (2) r is divided by its norm in d_2 too, as in pagmo,
    pymoo and TorchJD; the paper's formula for d_2 has r itself. (3) No constant in the root; TorchJD 0.18 adds 1e-12,
    which is larger than d_2² for losses below 1e-6. (4) Reference code: LibMOON's function has a reference point z that
    it does not use.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("pbi(penalty=0.5)").combine(torch.eye(2), losses=[1.0, 1.2])
    tensor([0.2500, 0.7500])
    """

    def __init__(
        self,
        penalty: Annotated[float, Ge(0)] = 5.0,
        preferences: Preferences = None,
        ideal: float | Sequence[float] | Mapping[str, float] = 0.0,
    ) -> None:
        self.penalty, self.preferences, self.ideal = penalty, preferences, ideal

    def mix(self, step: Step) -> Tensor:
        weights = self._weights(step)
        return weights / weights.mean()

    def paper_scale(self, step: Step) -> Tensor:
        return self._weights(step).sum()

    def _weights(self, step: Step) -> Tensor:
        """Return v, `[tasks]`."""
        preference = _per_task.preferences("preferences", self.preferences, step)
        ideal = _per_task.numbers("ideal", self.ideal, step, default=0.0)
        ray = preference / preference.norm()
        return _per_task.nonnegative(derivatives(step.losses - ideal, ray, self.penalty), ray)


def derivatives(gaps: Tensor, ray: Tensor, penalty: float) -> Tensor:
    """Return ∂(d_1 + θ d_2)/∂L, `[tasks]`, for f and the unit vector u."""
    largest = gaps.detach().abs().max()
    gaps = gaps / torch.where(largest > 0, largest, 1.0)  # their squares might overflow
    across = gaps - (ray @ gaps) * ray
    off = across.detach().norm() > ON_THE_RAY * gaps.detach().norm()
    across = torch.where(off, across, 0.0)
    return ray + penalty * across / torch.where(off, across @ across, 1.0).sqrt()


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=PBI,
        summary="descends towards losses in a given ratio: distance along a ray plus distance from it",
        reference="Zhang and Li 2007, MOEA/D, section II.C",
        traits={"differentiable", "loss_scale_invariant", *EQUIVARIANT},
        needs={"losses"},
    )
