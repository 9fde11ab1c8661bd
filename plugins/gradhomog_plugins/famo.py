"""FAMO: learn task weights that equalize the relative decrease of all losses."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, hookimpl, keyed
from gradhomog_plugins import _losses, _per_task

# Lower limit of D relative to the batch's mean D: the weights stay finite, for losses in any unit.
SMALLEST_GAP = 1e-8


class FAMO(Homogenizer):
    """Descend Σ_i z_i log D_i, with weights z that are learned so that all losses fall at the same relative rate.

        D_i = L_i − b_i,  z = softmax(ξ),  c = 1 / Σ_i z_i/D_i
        d = Σ_i (c z_i/D_i) g_i = c ∇Σ_i z_i log D_i
        ℓ_i ← s ℓ_i + (1 − s) log D_i;  δ_i: the decrease of ℓ_i from the previous step to this one
        ξ ← Adam(ξ, (∂z/∂ξ)ᵀ δ + γ ξ),  (∂z/∂ξ)ᵀ δ = z ∘ (δ − ⟨z, δ⟩)

    Args:
        lr: learning rate of the Adam that updates ξ.
        weight_decay: γ, pulls ξ to zero and with it z to equal weights.
        smoothing: s, the factor of the averages ℓ; 0 where every step has the same batch.
        lowest: b, lower bounds of the losses: one number, a list by slot, or a dict by domain with the entry `"*"` for
            other domains (0 without it).

    Use it when losses fall at different relative rates or have different units, and N backward passes are too
    expensive: it needs one backward pass, of the weighted loss, and no second evaluation of the losses. It is of little
    use where the noise between batches exceeds the decrease of the losses by far, and it does not resolve conflicts. A
    loss that reaches its lower bound takes nearly all of the step.

    Acts on rows: shared parameters receive the gradient of the weighted losses; each head of a multi-task network
    receives the unweighted gradient of its loss. The decrease of the losses is computed from the losses of the
    next step. On a full batch with s = 0 this is exactly the paper, which evaluates the same batch again after the
    step. On mini-batches the difference between two batches exceeds the decrease. The noise cancels in the sum of δ
    over the steps, but Adam divides by its size, so the weights hardly change. With averaged logarithms the weights
    change almost as much as in the paper (measurements: docs/decisions/0017-famo-in-one-pass.md). A new key starts with
    ξ = 0 and is updated from its second occurrence on. A loss below its `lowest` causes an error.

    Not differentiable, because ξ depends on the losses of the step itself: `create_graph=True` raises an error.

    State: by key, ξ, Adam's moments, and ℓ.

    Cost: O(N).

    Source: Liu et al. 2023, "FAMO: Fast Adaptive Multitask Optimization", arXiv 2306.03792, algorithm 1.

    Deviations: (1) δ, as described above. (2) D is at least 1e-8 of its mean; the authors' code adds 1e-8. (3) γ =
    1e-3, as in LibMTL and TorchJD; the authors' own two files have 0.01 and 1e-5. (4) No clipping; the authors' code
    clips the shared gradient to norm 1, which is left to the optimizer here. (5) b is not a running minimum: D would be
    zero in exactly those steps in which a task improves. (6) Adam's moments are part of the state; TorchJD 0.18 loses
    them.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("famo(lr=0.1)")
    >>> for losses in ([1.0, 1.0], [0.5, 0.9], [0.2, 0.8]):
    ...     result = pipe.homogenize(torch.eye(2), losses)
    >>> result.weights  # 1.6 and 0.4 as 1/L, but the first loss fell faster
    tensor([1.4604, 0.5396], dtype=torch.float64)
    """

    weights_absent = True
    state_names = {"logits": dict[str, keyed.Moments], "averages": dict[str, float]}

    def __init__(
        self,
        lr: Annotated[float, Gt(0)] = 0.025,
        weight_decay: Annotated[float, Ge(0)] = 1e-3,
        smoothing: Annotated[float, Interval(ge=0, lt=1)] = 0.9,
        lowest: float | Sequence[float] | Mapping[str, float] = 0.0,
    ) -> None:
        self.lr, self.weight_decay, self.smoothing, self.lowest = lr, weight_decay, smoothing, lowest
        self.logits: dict[str, keyed.Moments] = {}  # ξ
        self.averages: dict[str, float] = {}  # ℓ

    def mix(self, step: Step) -> StageResult:
        keys, log_gaps = step.names, self._log_gaps(step)
        averages = keyed.ema(self.averages, keys, log_gaps, self.smoothing)
        known = [key for key in keys if key in self.averages]
        decrease = keyed.read(self.averages, known, 0.0) - keyed.read(averages, known, 0.0)
        gradients = logit_gradients(torch.softmax(keyed.values(self.logits, known), dim=0), decrease)
        logits = keyed.adam(self.logits, known, gradients, self.lr, weight_decay=self.weight_decay)
        absent = step.absent_names
        absent_gaps = keyed.read(averages, absent, float(log_gaps.mean()))
        weights = _losses.exponential_weights(  # N c z/D
            keyed.values(logits, keys) - log_gaps, keyed.values(logits, absent) - absent_gaps
        )
        return StageResult(weights, aux={"logits": logits, "averages": averages})

    def update(self, step: Step) -> dict[str, Any]:
        return dict(step.aux)

    def _log_gaps(self, step: Step) -> Tensor:
        """Return log D, `[tasks]`."""
        gaps = step.losses - _per_task.numbers("lowest", self.lowest, step, default=0.0)
        _losses.require_valid(gaps >= 0, step, "losses must not be below `lowest`", "Set `lowest` to a smaller number.")
        mean = (gaps / step.tasks).sum()  # the sum without the division might overflow
        return (gaps.clamp_min(SMALLEST_GAP * mean) + (mean == 0)).log()  # if all gaps are zero, all D are 1


def logit_gradients(shares: Tensor, decrease: Tensor) -> Tensor:
    """Return (∂z/∂ξ)ᵀ δ = z ∘ (δ − ⟨z, δ⟩), `[tasks]`."""
    return shares * (decrease - shares @ decrease)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=FAMO,
        summary="learns weights so that all losses fall at the same relative rate",
        reference="Liu et al. 2023, arXiv 2306.03792, algorithm 1",
        traits={"stateful", "loss_scale_invariant", "scale_equivariant", "rotation_equivariant"},
        needs={"losses"},
    )
