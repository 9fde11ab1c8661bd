"""Soft optimal uncertainty weighting (UW-SO): a softmax of the inverse losses."""

from typing import Annotated

from annotated_types import Gt
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, hookimpl
from gradhomog_plugins import _losses


class UWSO(Homogenizer):
    """Weights from a softmax, with a temperature, of 1/L_i.

        w = softmax(1/(T L_1), …, 1/(T L_N))
        d = Σ_i w_i g_i

    Args:
        temperature: T; the larger, the more equal the weights. In units of 1/loss; tune it as a learning rate. With T
            far below the difference of the inverse losses, one task gets all weight.

    Use it when losses have a common unit but different levels of noise, and learned variances (`uw`) adapt too slowly.
    It is harmful where a task is difficult rather than noisy, because its high loss lowers its weight; where a loss
    approaches zero, because its task then takes all weight; and with an untuned temperature. It does not resolve
    conflicts.

    Weights proportional to 1/L_i minimize the loss of uncertainty weighting: `scale_invariant` (in the paper: UW-O).
    Here they are under a softmax. Acts on rows: shared parameters receive the gradient of the weighted losses; each
    head of a multi-task network receives the unweighted gradient of its loss. Losses must be positive. Computed from
    ratios of losses: nothing overflows.

    Differentiable in rows and losses. As with the paper's stop-gradient, the direction does not contain the derivatives
    of the weights.

    State: none.

    Cost: O(N).

    Source: Kirchdorfer et al. 2024, "Analytical Uncertainty-Based Loss Weighting in Multi-Task Learning", GCPR, arXiv
    2408.07985, the equation of UW-SO.

    Deviations: (1) No 1e-8 added to the losses, as in code that follows the paper. (2) Heads are not weighted.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("uw_so").combine(torch.eye(2), losses=[0.5, 1.0])
    tensor([0.7311, 0.2689])
    """

    def __init__(self, temperature: Annotated[float, Gt(0)] = 1.0) -> None:
        self.temperature = temperature

    def mix(self, step: Step) -> Tensor:
        losses = _losses.positive(step, "because weights use 1/L")
        least = losses.min().detach()
        # (1/L − 1/least)/T, written so that two infinite inverse losses are not subtracted.
        return _losses.exponential_weights((least / losses - 1) / least / self.temperature)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=UWSO,
        summary="a softmax of the inverse losses, with a temperature (analytical uncertainty weighting)",
        reference="Kirchdorfer et al. 2024, arXiv 2408.07985",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"losses"},
    )
