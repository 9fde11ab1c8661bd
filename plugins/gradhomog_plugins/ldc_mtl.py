"""LDC-MTL: weights that are learned together with the model, with a penalty on differences of the weighted losses."""

import math
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, hookimpl, keyed
from gradhomog_plugins import _losses
from gradhomog_plugins.famo import logit_gradients

# Largest L/L(0): its square does not overflow float64, so that training continues after a first loss near zero.
LARGEST_RATIO = 1e100
# Weighted losses are equal if they differ by less than this part of their sum: the rounding of losses in float32.
TIE = 1e-6


class LDCMTL(Homogenizer):
    """Descend one loss in the model and in the weights: the weighted losses plus the discrepancy of neighbouring tasks.

        L = Σ_i σ_i ℓ_i + λ Σ_{i<N} |σ_i ℓ_i − σ_{i+1} ℓ_{i+1}|,  σ = softmax(ξ),  ℓ_i = L_i / L_i(0)
        ∂L/∂ℓ_i = σ_i (1 + λ (τ_i − τ_{i−1})),  τ_i = sign(σ_i ℓ_i − σ_{i+1} ℓ_{i+1}),  τ_0 = τ_N = 0
        ξ ← Adam(ξ, ∂L/∂ξ = σ ∘ (q − ⟨σ, q⟩)),  q_i = ℓ_i (1 + λ (τ_i − τ_{i−1})),  |ξ| ≤ bound
        d = 1/N Σ_i ω_i g_i,  ω_i = ∂L/∂L_i / mean_j ∂L/∂L_j;  paper's scale: ω_i = N ∂L/∂L_i, so that d = ∇L

    Args:
        penalty: λ, below one half: then all weights are positive.
        lr: learning rate of the Adam that updates ξ after each step.
        bound: ξ stays in [−bound, bound], so the ratio of two σ is at most e^{2 bound}. Without it, the weight of the
            smallest loss grows to one. The default, log 2, gives a ratio of 4.
        normalization: ℓ: `"initial"`, L/L(0) with the first loss of the key; `"log"`, log(L/L(0)); or `"none"`, L.

    Use it when the losses should remain in similar proportions, and N backward passes are too expensive: it needs one
    backward pass, of the weighted loss. With `"initial"` the losses may have different units. It is of little use in
    short training, in which a small `lr` hardly changes the weights, and harmful where a loss cannot fall as far as the
    others. It does not resolve conflicts.

    Of the paper's bilevel problem this is the form of the authors' code: one step of the model and of the weights on
    one penalized loss, without the term of the lower level's solution, which the paper omits as negligible. The model's
    step is `mix`, that of the weights is `update`. The weights are free parameters; a router network that computes them
    from features is not supported: homogenizers train no modules.

    Acts on rows: shared parameters receive the gradient of the weighted losses; each head of a multi-task network
    receives the unweighted gradient of its loss. Neighbours are tasks in the order of their names, or of their
    positions if they have none; tasks of one name count with their mean loss. τ is linear where the difference is less
    than 1e-6 of the sum, so that equal losses have τ = 0. Losses must not be negative for `"initial"`, and must be
    positive for `"log"`; a first loss of zero causes an error.

    Not differentiable, because the weights jump where two weighted losses are equal: `create_graph=True` raises an
    error.

    State: by key, ξ and Adam's moments, and L(0).

    Cost: O(N).

    Source: Xiao et al. 2025, "LDC-MTL: Balancing Multi-Task Learning through Scalable Loss Discrepancy Control", arXiv
    2502.08585; the authors' code, experiments/*/trainer.py.

    Deviations: (1) ξ instead of a router. The authors' code has free parameters for CelebA and QM9, under a sigmoid and
    divided by their sum in the first term only, and a softmax of a linear layer of the features for NYUv2 and
    Cityscapes, clipped to [0.2, 0.8]; `bound` replaces the clip, whose limits allow no more than five tasks. (2) ξ = 0
    at first; random for QM9. (3) A separate Adam updates ξ; theirs has the optimizer and rate of the model. (4) One
    normalization as default. Their code has L/L(0) times the least first loss for NYUv2, `"log"` for QM9 and `"none"`
    for CelebA and Cityscapes. For QM9 it takes L(0) from the first batch of each epoch; here L(0) is the first loss of
    the training. (5) The losses of the discrepancy are always weighted; they are not for Cityscapes. (6)
    The mean of the weights is one by default.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("ldc_mtl(penalty=0.1)")
    >>> for losses in ([1.0, 10.0], [0.9, 5.0]):
    ...     result = pipe.homogenize(torch.eye(2), torch.tensor(losses))
    >>> 10 * result.weights[1] / result.weights[0]  # times L(0); the first loss fell less: 0.9/1.1
    tensor(0.8182, dtype=torch.float64)
    """

    state_names = {"logits": dict[str, keyed.Moments], "first": dict[str, float]}

    def __init__(
        self,
        penalty: Annotated[float, Interval(ge=0, lt=0.5)] = 0.05,
        lr: Annotated[float, Gt(0)] = 1e-3,
        bound: Annotated[float, Interval(gt=0, le=69)] = math.log(2),
        normalization: Literal["initial", "log", "none"] = "initial",
    ) -> None:
        self.penalty, self.lr, self.bound = penalty, lr, bound
        self.normalization = normalization
        self.logits: dict[str, keyed.Moments] = {}  # ξ
        self.first: dict[str, float] = {}  # L(0)

    def mix(self, step: Step) -> Tensor:
        return _losses.exponential_weights(self._log_derivatives(step))

    def paper_scale(self, step: Step) -> Tensor:
        weights = self._log_derivatives(step).exp()
        _losses.require_at_most(step.tasks * weights, step, "N ∂L/∂L")
        return weights.sum()

    def update(self, step: Step) -> dict[str, Any]:
        keys, losses = step.names, step.losses
        normalized, _ = self._normalized(step)
        shares = torch.softmax(keyed.values(self.logits, keys), dim=0)
        gradients = logit_gradients(shares, normalized * self._slopes(step, shares * normalized))
        logits = keyed.adam(self.logits, keys, gradients, self.lr, bound=self.bound)
        if self.normalization == "none":
            return {"logits": logits}
        return {"logits": logits, "first": {**keyed.write({}, keys, losses), **self.first}}

    def _log_derivatives(self, step: Step) -> Tensor:
        """Return log ∂L/∂L_i, `[tasks]`."""
        keys = step.names
        normalized, log_units = self._normalized(step)
        logits = keyed.values(self.logits, keys)
        slopes = self._slopes(step, torch.softmax(logits, dim=0) * normalized)
        return torch.log_softmax(logits, dim=0) + slopes.log() - log_units

    def _slopes(self, step: Step, weighted: Tensor) -> Tensor:
        """Return 1 + λ (τ_i − τ_{i−1}), `[tasks]`, for the weighted losses σℓ `[tasks]`."""
        means = keyed.mean_numbers(step.names, weighted)
        ordered = sorted(step.keys, key=lambda key: (key.domain, key.slot))
        names = list(dict.fromkeys(key.by() for key in ordered))
        slopes = neighbour_slopes(torch.tensor([means[name] for name in names], dtype=torch.float64))
        of_key = dict(zip(names, slopes.tolist(), strict=True))
        return 1 + self.penalty * torch.tensor([of_key[key] for key in step.names], dtype=torch.float64)

    def _normalized(self, step: Step) -> tuple[Tensor, Tensor]:
        """Return ℓ, and log of L/ℓ or, for the logarithm, of the inverse of its derivative, each `[tasks]`."""
        losses, keys = step.losses, step.names
        if self.normalization == "none":
            return losses, torch.zeros_like(losses)
        log = self.normalization == "log"
        valid = losses > 0 if log else losses >= 0
        expected = f"losses must {'be positive' if log else 'not be negative'} for {self.normalization!r}"
        _losses.require_valid(valid, step, expected)
        first = keyed.read({**keyed.write({}, keys, losses), **self.first}, keys, 1.0)
        _losses.require_valid(first > 0, step, "the first loss of a task must not be zero")
        if log:
            return losses.log() - first.log(), losses.log()
        return (losses / first).clamp_max(LARGEST_RATIO), first.log()


def neighbour_slopes(weighted: Tensor) -> Tensor:
    """Return the derivatives τ_i − τ_{i−1} of Σ_i |a_i − a_{i+1}| w.r.t. a, `[keys]`; τ is linear near equality."""
    above, below = weighted[:-1], weighted[1:]
    width = TIE * (above.abs() + below.abs())
    signs = ((above - below) / torch.where(width > 0, width, 1.0)).clamp(-1, 1)
    return torch.nn.functional.pad(signs, (0, 1)) - torch.nn.functional.pad(signs, (1, 0))


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=LDCMTL,
        summary="learns weights on the weighted losses plus a penalty on the differences of neighbours",
        reference="Xiao et al. 2025, arXiv 2502.08585",
        traits={"stateful", "loss_scale_invariant", "scale_equivariant", "rotation_equivariant"},
        needs={"losses"},
    )
