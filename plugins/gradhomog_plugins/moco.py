"""MoCo: MGDA on gradients averaged over steps, with weights that change gradually."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, as_jacobian, hookimpl, keyed
from gradhomog_plugins import _row_state
from gradhomog_plugins._row_state import RowState


def project_onto_simplex(values: Tensor) -> Tensor:
    """Return the nearest point with entries ≥ 0 and sum 1 for each vector `[..., tasks]`: argmin_{x ∈ Δ} ‖x − v‖².

    x_i = max(v_i − θ, 0), where θ makes the sum 1: with u the values in descending order, θ = (u_1 + … + u_k − 1) / k
    for the largest k with u_k > θ.

    Differentiable where no entry is at the threshold. An entry of −∞ becomes 0. Exact up to the rounding of
    differences between values, also if a large number is added to all of them. Cost: one sort.

    Source: Held, Wolfe and Crowder 1974, doi 10.1007/BF01580223; Duchi et al. 2008, doi 10.1145/1390156.1390191,
    figure 1.

    >>> project_onto_simplex(torch.tensor([0.5, 1.0, -2.0]))
    tensor([0.2500, 0.7500, 0.0000])
    """
    # The projection is invariant to a constant added to all values. A large constant would lose the 1 in rounding.
    values = values - values.amax(dim=-1, keepdim=True).detach()
    falling = values.sort(dim=-1, descending=True).values
    excess = falling.cumsum(dim=-1) - 1
    places = torch.arange(1, values.shape[-1] + 1, dtype=values.dtype, device=values.device)
    kept = (falling * places > excess).sum(dim=-1, keepdim=True)
    threshold = excess.gather(-1, kept - 1) / kept
    return (values - threshold).clamp_min(0)


class MoCo(Homogenizer):
    """Average the rows over steps, and update weights of the averages by one descent step on the length of their sum.

        y_i ← y_i − β_t (y_i − g_i),  β_t = beta / t^beta_decay,  y_i = 0 before the first step
        ŷ_i = y_i / (1 − Π_t (1 − β_t)), which corrects the start from zero
        d = Σ_i λ_i ŷ_i;  paper's scale: Σ_i λ_i y_i
        λ ← Π_Δ(λ − γ_t (Ŷ Ŷᵀ / s + ρ I) λ),  γ_t = gamma / t^gamma_decay,  s = 1/N Σ_i ‖ŷ_i‖²
        Π_Δ: the nearest point with entries ≥ 0 and sum 1;  λ_i = 1/N in the first step, the new λ in the next

    Args:
        beta: in (0, 1].
        beta_decay: ≥ 0.
        gamma, gamma_decay: both ≥ 0.
        rho: ρ ≥ 0, pull towards equal weights.
        relative: the step above, which a common factor of the rows does not change. False is the paper's: y_i instead
            of ŷ_i and s = 1, for which `gamma` has to be of the order of 1/‖g‖².

    Use it when rows conflict, as for `mgda`, but the gradients of mini-batches are so noisy that MGDA's weights change
    strongly from step to step. With full batches `mgda` gives the limit at once. Like MGDA it favours tasks with short
    rows, and it keeps a copy of the rows for every key.

    With the gradients of all data of a task, λ converges to the weights of MGDA. With those of samples, the weights of
    MGDA are biased, because they are not linear in the gradients; the noise of the averages decreases, and with it the
    bias. Zero rows, duplicates, opposite rows and single tasks need no exception. In β_t, t counts the steps of one
    task, in γ_t all steps. In a batch that has only some keys, weights are divided by their sum, and their ratio to the
    weights of other keys is kept. Rows whose inner products overflow float64 cause an error.

    Differentiable in the rows, with weights and earlier averages as constants.

    State: a row for every key, in float32 or float64, N × params numbers in all; and the weights. Rows with other names
    or shapes restart the averages.

    Cost: the new averages, their Gramian and the direction; memory of one more copy of the rows.

    Source: Fernando et al. 2023, "Mitigating Gradient Bias in Multi-objective Learning", arXiv 2210.12624, algorithm 1.
    The defaults of β_t, γ_t and ρ are those of the code that its authors contributed to LibMTL.

    Deviations: (1) `relative`. (2) The projection Π_Δ of the paper. LibMTL first divides each row by its norm and
    multiplies it by its loss, and uses a softmax instead of Π_Δ, which pulls weights together even where the gradient
    is zero: it maps (1, 0) to (0.73, 0.27). (3) λ is updated after the direction of the step is computed; LibMTL
    updates it before.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("moco(gamma=1)")
    >>> rows = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> pipe.combine(rows), pipe.combine(rows)
    (tensor([1.0000, 0.5000]), tensor([0.4000, 0.8000]))
    """

    state_names = {
        "averages": RowState, **dict.fromkeys(("weight_sums", "counts", "weights"), dict[str, float]), "steps": int
    }  # fmt: skip

    def __init__(
        self,
        beta: Annotated[float, Interval(gt=0, le=1)] = 0.5,
        beta_decay: Annotated[float, Ge(0)] = 0.5,
        gamma: Annotated[float, Ge(0)] = 0.1,
        gamma_decay: Annotated[float, Ge(0)] = 0.5,
        rho: Annotated[float, Ge(0)] = 0.0,
        relative: bool = True,
    ) -> None:
        self.beta, self.beta_decay, self.gamma, self.gamma_decay = beta, beta_decay, gamma, gamma_decay
        self.rho, self.relative = rho, relative
        self.averages: RowState = {}  # ŷ = y / weight_sums
        self.weight_sums: dict[str, float] = {}  # 1 − Π (1 − β_t), the correction of the start from zero
        self.counts: dict[str, float] = {}
        self.weights: dict[str, float] = {}  # N λ_i
        self.steps = 0

    def rows(self, step: Step) -> StageResult:
        keys = step.names
        saved, saved_sums, saved_counts = _row_state.fitting(step, self.averages, self.weight_sums, self.counts)
        counts = keyed.read(saved_counts, keys, 0.0) + 1
        beta = self.beta / counts**self.beta_decay
        weight_sums = (1 - beta) * keyed.read(saved_sums, keys, 0.0) + beta
        # ŷ moves towards the row by the factor β / weight_sums, which is 1 in the first step.
        averages = _row_state.moved(saved, keys, step.jacobian, beta / weight_sums)
        state = {
            "averages": _row_state.write(saved, keys, averages),
            "weight_sums": keyed.write(saved_sums, keys, weight_sums),
            "counts": keyed.write(saved_counts, keys, counts),
        }
        mixed = _row_state.in_jacobian(step, averages).mix(step.tasks * self._weights(keys))
        return StageResult(mixed, aux=(averages, weight_sums, state))

    def paper_scale(self, step: Step) -> Tensor:
        scale: Tensor = step.aux[1]
        return scale

    def update(self, step: Step) -> Mapping[str, Any]:
        keys, (averages, weight_sums, state) = step.names, step.aux
        steps = self.steps + 1
        after = self._descend(self._weights(keys), as_jacobian(averages).gramian(), weight_sums, steps)
        # The sum over this batch's keys is preserved, and with it their ratio to the weights of other keys.
        together = sum(self.weights.get(key, 1.0) for key in keys) or float(len(keys))
        return {**state, "weights": keyed.write(self.weights, keys, together * after), "steps": steps}

    def _weights(self, keys: list[str]) -> Tensor:
        """Return λ of a batch, float64 `[tasks]`."""
        weights = keyed.read(self.weights, keys, 1.0)
        return weights / weights.sum() if weights.sum() > 0 else torch.full_like(weights, 1 / len(keys))

    def _descend(self, weights: Tensor, gramian: Tensor, weight_sums: Tensor, steps: int) -> Tensor:
        if not self.relative:
            gramian = weight_sums[:, None] * gramian * weight_sums
        size = gramian.diagonal().mean() if self.relative else torch.ones((), dtype=torch.float64)
        gradient = gramian @ weights / torch.where(size > 0, size, 1.0) + self.rho * weights  # size 0: zero rows
        return project_onto_simplex(weights - self.gamma / steps**self.gamma_decay * gradient)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=MoCo,
        summary="MGDA on gradients averaged over steps, with weights that change gradually",
        reference="Fernando et al. 2023, arXiv 2210.12624",
        traits={"differentiable", "stateful", "momentum", "scale_equivariant", "rotation_equivariant"},
        needs={"jacobian"},
    )
