"""COSMOS: a weighted sum of the losses minus the cosine between the losses and a preference."""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, hookimpl
from gradhomog_plugins import _losses, _per_task
from gradhomog_plugins._per_task import Preferences


class COSMOS(Homogenizer):
    """Weights from the derivatives of the weighted sum of the losses minus λ times their cosine with the preference.

        F = ⟨r, L⟩ − λ cos(r, L),  L the vector of the losses,  Σ_i r_i = 1
        v_i = max(0, ∂F/∂L_i) = max(0, r_i − λ (r_i/‖r‖ − cos(r, L) L_i/‖L‖) / ‖L‖)
        d = 1/N Σ_i ω_i g_i,  ω_i = v_i / mean_j v_j;  paper's scale: ω_i = N v_i, so that d = Σ_i v_i g_i

    Args:
        penalty: λ, in units of the losses. With 0 the weights are the preference.
        preferences: r, weights of the sum and at the same time the ratio of the losses that the cosine rewards: a list
            by slot, or a dict by domain with the entry `"*"` for other domains (1 without it); divided by their sum. By
            default all equal.

    Use it when the losses should end near a given ratio, have a common unit and are of the size of `penalty`: the
    cosine has a bounded effect, and its derivative grows as the losses fall. It is harmful where losses approach zero,
    because the cosine then decides alone, and it does not resolve conflicts. `pbi` has a similar aim and does not
    depend on the unit of the losses. In both, a large preference permits a *large* loss of its task, if the penalty
    dominates.

    In the paper the network also receives r as input, with a new r from a Dirichlet distribution in each step, so that
    one network covers the Pareto front. This is the objective alone, for one r. Acts on rows: shared parameters receive
    the gradient of the weighted losses; each head of a multi-task network receives the unweighted gradient of its loss.
    Losses must not be negative. If no derivative is positive (all losses with a preference are zero), the weights are
    r.

    Differentiable in rows and losses, except where a weight becomes zero.

    State: none.

    Cost: O(N).

    Source: Ruchte and Grabocka 2021, "Scalable Pareto Front Approximation for Deep Multi-Objective Learning", ICDM,
    arXiv 2103.13392, equation 5.

    Deviations: (1) A negative derivative counts as zero. The paper's gradient *ascends* losses below their share, and
    for small losses the sum of its weights is negative, so that no factor gives weights of mean one. Where all
    derivatives are positive, the paper's scale is that gradient. (2) λ = 2, the authors' value for Multi-MNIST; they
    have 0.01 for three tables, 3 for CelebA and 8 for Multi-Fashion+MNIST. (3) r is divided by its sum, as theirs is by
    its distribution; TorchJD does not divide it. LibMOON divides r by its norm in the weighted sum.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("cosmos").combine(torch.eye(2), losses=[4.0, 3.0])
    tensor([0.5401, 0.4599])
    """

    def __init__(self, penalty: Annotated[float, Ge(0)] = 2.0, preferences: Preferences = None) -> None:
        self.penalty, self.preferences = penalty, preferences

    def mix(self, step: Step) -> Tensor:
        weights, _ = self._weights(step)
        return weights / weights.mean()

    def paper_scale(self, step: Step) -> Tensor:
        weights, size = self._weights(step)
        derivatives: Tensor = weights / size
        _losses.require_at_most(step.tasks * derivatives, step, "N ∂F/∂L")
        return derivatives.sum()

    def _weights(self, step: Step) -> tuple[Tensor, Tensor]:
        """Return ‖L‖ v `[tasks]` and ‖L‖; r and 1 if all losses are zero."""
        losses = _losses.nonnegative(step, "because their cosine with a preference would not be")
        preference = _per_task.preferences("preferences", self.preferences, step)
        largest = losses.detach().max()
        if not bool(largest > 0):
            return preference, torch.ones_like(largest)
        size: Tensor = (losses / largest).norm() * largest  # the squares of losses might overflow
        direction, unit = losses / size, preference / preference.norm()
        slopes = size * preference - self.penalty * (unit - (unit @ direction) * direction)  # ‖L‖ ∂F/∂L
        return _per_task.nonnegative(slopes, size * preference), size


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=COSMOS,
        summary="a weighted sum of the losses minus their cosine with a preference",
        reference="Ruchte and Grabocka 2021, arXiv 2103.13392, equation 5",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"losses"},
    )
