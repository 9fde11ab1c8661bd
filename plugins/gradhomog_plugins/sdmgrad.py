"""SDMGrad: the direction of MGDA, regularized towards the mean gradient."""

from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from gradhomog import (
    Homogenizer,
    HomogenizerSpec,
    StageResult,
    Step,
    gramian_rounding,
    hookimpl,
    keyed,
    minimum_norm_weights,
    safe_sqrt,
)
from gradhomog_plugins.moco import project_onto_simplex


class SDMGrad(Homogenizer):
    """The direction of MGDA, mixed with the mean gradient both before and after its weights are computed.

        w = argmin ½ ‖Σ_i w_i g_i + λ g_0‖² over w ≥ 0, Σ_i w_i = 1,  g_0 = 1/N Σ_i g_i
        d = (Σ_i w_i g_i + λ g_0) / (1 + λ)
        λ = 0 is MGDA, λ → ∞ the mean

    Args:
        regularization: λ. The authors' experiments use 0.3, the default of their class is 0.6.
        solver: `"exact"`; or `"sgd"`, the authors' descent, which starts from the result of the previous step:
            `iterations` steps of gradient A (w + λ w̃), A = J Jᵀ / s², s the mean norm of the rows, w̃ = 1/N, each
            followed by the projection onto the simplex.
        lr: learning rate of `"sgd"`.
        momentum: momentum of `"sgd"`; its velocity starts from zero in every step of training.
        iterations: number of iterations of `"sgd"`.

    Use it when rows conflict, but `mgda` follows the shortest rows so closely that the mean loss hardly falls: λ
    interpolates between the two. It does not balance units: for small λ, losses with small gradients dominate as in
    MGDA, for large λ those with large gradients. Use `solver="sgd"` only to reproduce the authors' code; its default
    rate does not converge.

    `"exact"` is `minimum_norm_weights` of the rows h_i = g_i + λ g_0, because Σ_i w_i h_i is the vector to be shortened
    for Σ_i w_i = 1. It is the default because `"sgd"` with the authors' rate of 10 does not converge: for nearly
    orthogonal rows of one norm it moves the weight from task to task, and the vector stays 1.3, 1.6, 1.8 times as long
    as the shortest for 2, 4, 16 tasks, in every step on the same rows (measured 2026-11 on one processor: the
    trajectory is chaotic, so the rounding of another processor gives other figures); with a rate of 2 it is the
    shortest to 1e-4. A zero row counts as in MGDA; where it has all the weight, d = λ g_0 / (1 + λ).

    Differentiable in the rows where the set of tasks with w_i > 0 does not change; with `"sgd"` through all iterations,
    from a constant start.

    State: with `"sgd"`, w by key; otherwise none.

    Cost: one Gramian, and `minimum_norm_weights` or O(N²) per iteration.

    Source: Xiao, Ban and Ji 2023, "Direction-oriented Multi-objective Learning", arXiv 2305.18409, algorithm 1 and
    section 6.1; the authors' code, SDMGrad in methods/weight_methods.py.

    Deviations: (1) One Jacobian. The paper estimates J Jᵀ from two independent batches and computes the direction from
    a third; callers of this library have one batch in a step. The authors' code also uses only one batch, but does not
    document it: its three batches share one buffer, which contains the last batch. (2) `"exact"`, as described above.
    (3) A is relative to the norms alone. The code adds 1e-4 to their squares and TorchJD 0.18 1e-8 to s², which makes A
    vanish for small gradients, so that w hardly changes from its start (2026-11). (4) The length of d is the paper's;
    the code multiplies d by N and clips it to norm 1.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("sdmgrad(regularization=1)").combine(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    tensor([0.5000, 0.7500])
    """

    state_names = {"weights": dict[str, float]}

    def __init__(
        self,
        regularization: Annotated[float, Ge(0)] = 0.3,
        solver: Literal["exact", "sgd"] = "exact",
        lr: Annotated[float, Gt(0)] = 10.0,
        momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.5,
        iterations: Annotated[int, Ge(1)] = 20,
    ) -> None:
        self.regularization, self.solver = regularization, solver
        self.lr, self.momentum, self.iterations = lr, momentum, iterations
        self.weights: dict[str, float] = {}

    def mix(self, step: Step) -> StageResult:
        gramian = step.gramian()
        if self.solver == "exact":
            shifted = gramian_with_mean(gramian, self.regularization)
            weights, converged = minimum_norm_weights(shifted, gramian_rounding(step.dtype))
        else:
            start = self._start(step.names)
            weights = descend(gramian, start, self.regularization, self.lr, self.momentum, self.iterations)
            converged = torch.tensor(True)
        mixing = (step.tasks * weights + self.regularization) / (1 + self.regularization)
        return StageResult(mixing, aux=weights, converged=bool(converged.all()))

    def update(self, step: Step) -> dict[str, Any]:
        if self.solver == "exact":
            return {}
        return {"weights": keyed.write(self.weights, step.names, step.aux)}

    def _start(self, keys: list[str]) -> Tensor:
        """Return the last w of these keys, scaled to sum one, `[tasks]`."""
        weights = keyed.read(self.weights, keys, 1 / len(keys))
        return weights / weights.sum() if bool(weights.sum() > 0) else torch.full_like(weights, 1 / len(keys))


def gramian_with_mean(gramian: Tensor, regularization: float) -> Tensor:
    """Return the Gramian of the rows g_i + λ g_0, `[..., tasks, tasks]`."""
    half = gramian + regularization * gramian.mean(dim=-2, keepdim=True)
    return half + regularization * half.mean(dim=-1, keepdim=True)


def descend(
    gramian: Tensor, start: Tensor, regularization: float, lr: float, momentum: float, iterations: int
) -> Tensor:
    """Return w `[..., tasks]` after projected gradient steps with momentum on ½ wᵀAw + λ wᵀA w̃, A = J Jᵀ / s²."""
    norms = safe_sqrt(gramian.diagonal(dim1=-2, dim2=-1))
    scale = norms.mean(dim=-1)[..., None, None]
    relative = gramian / torch.where(scale > 0, scale, torch.ones_like(scale)).square()
    pull = regularization * relative.mean(dim=-1)
    weights, velocity = start, torch.zeros_like(pull)
    for _ in range(iterations):
        velocity = momentum * velocity + (relative * weights[..., None, :]).sum(dim=-1) + pull
        weights = project_onto_simplex(weights - lr * velocity)
    return weights


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=SDMGrad,
        summary="the direction of MGDA, regularized towards the mean gradient",
        reference="Xiao, Ban and Ji 2023, arXiv 2305.18409",
        traits={"differentiable", "stateful", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"gramian"},
    )
