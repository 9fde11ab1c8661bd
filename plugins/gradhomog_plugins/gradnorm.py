"""GradNorm: learn task weights that balance gradient norms by training rate."""

from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, hookimpl, keyed
from gradhomog_plugins import _losses


class GradNorm(Homogenizer):
    """Learn weights w by descent on L_grad = Σ_i |G_i − Ḡ r_i^α|, so that slow tasks get larger gradients.

        G_i = w_i n_i,  n_i = ‖∇L_i‖,  Ḡ = mean_i G_i,  r_i = L̃_i / mean_j L̃_j,  L̃_i = L_i / L_i(0)
        ∂L_grad/∂w_i = sign(G_i − Ḡ r_i^α) · n_i, with Ḡ and r as constants
        w ← w · exp(−lr · w · ∂L_grad/∂w / Ḡ),  then w ← N w / Σ_j w_j;  the next step uses these weights
        d = 1/N Σ_i w_i g_i;  paper's scale: d = Σ_i w_i g_i

    Args:
        alpha: exponent α of the training rates; 0 equalizes the norms.
        lr: rate of the weights.
        initial_loss: L_i(0): `"first"`, the first loss of the key; or a number, for example log(ways) in
            classification; use a number if the task of a key changes between steps.
        parameters: glob pattern of the names of the parameters whose gradients are measured; the paper uses the last
            shared layer.

    Use it when gradient norms differ by a large factor, so that one task dominates the step, or when some losses fall
    more slowly than others relative to their first values. It does not change cosines, so it does not resolve
    conflicts. Where norms are within a factor of two it has little to correct (docs/results/ablation.md), and in short
    training weights with a small `lr` hardly change.

    The gradient of the weights needs row norms only: no second backward pass, no retained graph, and the gradients of
    the model are not written. The weight of a task with zero gradient changes by the normalization only. Negative
    losses and first losses of zero cause an error, because they have no training rate.

    Differentiable in the rows, with the weights as constants, as in the paper.

    State: log w and first losses, by key.

    Cost: the norms of the rows, and O(N).

    Source: Chen et al. 2018, "GradNorm", arXiv 1711.02257, equations 1 and 2, algorithm 1.

    Deviations: (1) Multiplicative steps. The paper's additive steps, w ← w − lr ∂L_grad/∂w, depend on the unit of the
    gradients and can make weights negative. Even divided by Ḡ they do not converge where norms differ by more than
    about 1/lr, because a step is then longer than the weight (measured: rows of norms 100 and 1 end at weighted norms
    70 to 1); multiplicative steps converge for norms of 10⁵ to 1. (2) The weights that a batch changes keep their sum,
    because it may have only some domains. (3) Reference code: gradnorm-pytorch reverses the sign of the
    exponent and writes second-order gradients into the model; LibMTL trains w with the model's optimizer under a
    softmax.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("gradnorm(alpha=0, lr=0.1)")
    >>> jacobian = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    >>> _ = pipe.combine(jacobian, losses=[1.0, 1.0])
    >>> pipe.combine(jacobian, losses=[1.0, 1.0])  # the weight of the large gradient has decreased
    tensor([1.3505, 0.5498])
    """

    weights_absent = True
    state_names = {"log_weights": dict[str, float], "first_losses": dict[str, float]}

    def __init__(
        self,
        alpha: Annotated[float, Ge(0)] = 1.5,
        lr: Annotated[float, Gt(0)] = 0.025,
        initial_loss: Literal["first"] | Annotated[float, Gt(0)] = "first",
        parameters: str = "*",
    ) -> None:
        self.alpha, self.lr, self.initial_loss, self.parameters = alpha, lr, initial_loss, parameters
        self.log_weights: dict[str, float] = {}
        self.first_losses: dict[str, float] = {}

    def mix(self, step: Step) -> StageResult:
        log_weights = keyed.read(self.log_weights, step.names, 0.0)
        absent = keyed.read(self.log_weights, step.absent_names, 0.0)
        return StageResult(_losses.exponential_weights(log_weights, absent), aux=log_weights)

    def paper_scale(self, step: Step) -> float:
        return step.tasks

    def update(self, step: Step) -> dict[str, Any]:
        keys, norms = step.names, step.norms(self.parameters)
        losses = _losses.nonnegative(step, "because r^α is undefined for them")
        first_losses = {**keyed.write({}, keys, losses), **self.first_losses}
        rates = self._training_rates(step, losses, keyed.read(first_losses, keys, 1.0))
        log_weights = step.aux
        weights = _losses.exponential_weights(log_weights)
        mean_norm = (weights * norms).mean()
        if not mean_norm > 0:
            return {"first_losses": first_losses}  # all gradients are zero: nothing to balance
        # ∂/∂w of Σ_i |w_i n_i − Ḡ r_i^α| with a constant Ḡ r^α
        gradient = torch.sign(weights * norms - mean_norm * rates**self.alpha) * norms
        new_log_weights = log_weights - self.lr * weights * gradient / mean_norm
        new_log_weights = keyed.read(keyed.write({}, keys, new_log_weights), keys, 0.0)  # one weight per key
        # The sum over this batch's keys is preserved, and with it their ratio to the weights of other keys.
        new_log_weights = new_log_weights - new_log_weights.logsumexp(0) + log_weights.logsumexp(0)
        return {"first_losses": first_losses, "log_weights": keyed.write(self.log_weights, keys, new_log_weights)}

    def _training_rates(self, step: Step, losses: Tensor, first: Tensor) -> Tensor:
        """Return r, `[tasks]`; ones if all losses are zero."""
        if self.initial_loss != "first":
            first = torch.full_like(losses, self.initial_loss)
        expected = "the first loss of a task must not be zero, because its training rate is then undefined"
        _losses.require_valid(first > 0, step, expected, "Set `initial_loss` to a number.")
        if not losses.any():
            return torch.ones_like(losses)
        return _losses.exponential_weights(losses.log() - first.log())


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=GradNorm,
        summary="learns weights that balance gradient norms by the tasks' training rates",
        reference="Chen et al. 2018, arXiv 1711.02257",
        traits={"differentiable", "stateful", "loss_scale_invariant", "scale_equivariant", "rotation_equivariant"},
        needs={"losses", "norms"},
    )
