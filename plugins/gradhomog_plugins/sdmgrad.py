"""SDMGrad: the shortest vector in the convex hull of the gradients, drawn towards their mean."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, OptionError, hookimpl, minimum_norm_weights, safe_sqrt
from gradhomog_plugins._simplex import project_onto_simplex


class SDMGrad(Homogenizer):
    """The direction that MGDA would take, mixed with the mean gradient before and after its weights are chosen.

    w = argmin ½ ‖Σ_i w_i g_i + λ g_0‖² over w ≥ 0, Σw = 1,  g_0 = 1/N Σ_i g_i
    d = (Σ_i w_i g_i + λ g_0) / (1 + λ)

    λ = 0 is MGDA, λ → ∞ the mean.

    Args:
        regularization: λ ≥ 0. The authors' experiments take 0.3, their class 0.6 unless told otherwise.
        solver: `"exact"`; or `"sgd"`, the authors' descent, from where it ended in the step before: `iterations` steps
            of gradient A (w + λ w̃), A = J Jᵀ / s², s the mean norm of the rows, w̃ = 1/N, then the nearest w on the
            simplex.
        lr: > 0, of `"sgd"`.
        momentum: in [0, 1), of `"sgd"`; its velocity starts from zero in every step of training.
        iterations: ≥ 1, of `"sgd"`.
        key: w of `"sgd"` is held by `"slot"` or by `"domain"`.
        scale: accepted for uniformity; Σ_i w_i = 1 means N identical rows give that row in both.

    `"exact"` is minimum_norm_weights of the rows h_i = g_i + λ g_0: as Σw = 1, Σ_i w_i h_i is what is to be short. The
    default, because `"sgd"` with the authors' rate of 10 does not come to the minimum: of nearly orthogonal rows of one
    norm it hands the weight from task to task, and the vector stays 1.3, 1.6, 1.8 times as long as the shortest for 2,
    4, 16 tasks, step after step on the same rows; with a rate of 2 it is the shortest to 1e-4 (measured).

    Differentiable in the rows wherever the set of tasks with w_i > 0 does not change; with `"sgd"` through all
    iterations, from a constant start. A zero row takes part as in MGDA; where it takes all the weight, d is
    λ g_0 / (1 + λ). State of `"sgd"`: w by key. Cost: one Gramian, and minimum_norm_weights or O(N²) an iteration.

    Source: Xiao, Ban and Ji 2023, "Direction-oriented Multi-objective Learning", arXiv 2305.18409, algorithm 1 and
    section 6.1; the authors' code, SDMGrad in methods/weight_methods.py.

    Deviations: (1) one Jacobian, where the paper estimates J Jᵀ from two independent batches and takes the direction
    from a third: hosts have one batch in a step. The authors' code does the same without saying so: its three are one
    buffer, so that all of them are the last batch; (2) `"exact"`, see above; (3) A is relative to the norms alone; the
    code adds 1e-4 to their squares and TorchJD 1e-8 to s², beside which small gradients vanish; (4) the length of d is
    the paper's; the code multiplies it by N and clips it to norm 1.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("sdmgrad(regularization=1)").combine(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    tensor([0.5000, 0.7500])
    """

    carried = ("weights",)

    def __init__(
        self,
        regularization: float = 0.3,
        solver: Literal["exact", "sgd"] = "exact",
        lr: float = 10.0,
        momentum: float = 0.5,
        iterations: int = 20,
        key: Literal["slot", "domain"] = "slot",
        scale: Literal["mean", "paper"] = "mean",
    ) -> None:
        if not 0 <= regularization < math.inf:
            raise OptionError(f"sdmgrad: `regularization` must be finite and not negative; got {regularization!r}.")
        if not 0 < lr < math.inf:
            raise OptionError(f"sdmgrad: `lr` must be positive; got {lr!r}.")
        if not 0 <= momentum < 1:
            raise OptionError(f"sdmgrad: `momentum` must be in [0, 1); got {momentum!r}.")
        if iterations < 1:
            raise OptionError(f"sdmgrad: `iterations` must be at least 1; got {iterations!r}.")
        self.regularization, self.solver, self.key, self.scale = regularization, solver, key, scale
        self.lr, self.momentum, self.iterations = lr, momentum, iterations
        self.weights: dict[str, float] = {}
        self._found = torch.zeros(0)  # by `mix`, for `update` of the same step

    def mix(self, evidence: Evidence) -> Tensor:
        gramian, tasks = evidence.gramian(), evidence.tasks
        if self.solver == "exact":
            weights = minimum_norm_weights(towards_mean(gramian, self.regularization))
        else:
            start = self._start(evidence.by(self.key)).to(gramian.device)
            weights = descend(gramian, start, self.regularization, self.lr, self.momentum, self.iterations)
            self._found = weights.detach()
        return (tasks * weights + self.regularization) / (1 + self.regularization)

    def update(self, evidence: Evidence) -> None:
        if self.solver == "sgd":
            self.weights.update(zip(evidence.by(self.key), self._found.tolist(), strict=True))

    def _start(self, keys: list[str]) -> Tensor:
        """Where w was when these tasks were met last, on the simplex of this batch."""
        held = torch.tensor([self.weights.get(key, 1 / len(keys)) for key in keys], dtype=torch.float64)
        return held / held.sum() if bool(held.sum() > 0) else torch.full_like(held, 1 / len(keys))


def towards_mean(gramian: Tensor, regularization: float) -> Tensor:
    """The Gramian of the rows g_i + λ g_0, `[..., tasks, tasks]`."""
    half = gramian + regularization * gramian.mean(dim=-2, keepdim=True)
    return half + regularization * half.mean(dim=-1, keepdim=True)


def descend(
    gramian: Tensor, start: Tensor, regularization: float, lr: float, momentum: float, iterations: int
) -> Tensor:
    """w `[..., tasks]` after projected gradient steps with momentum on ½ wᵀAw + λ wᵀA w̃, A relative to the norms."""
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
        summary="the shortest vector in the hull of the gradients, drawn towards their mean",
        reference="Xiao, Ban and Ji 2023, arXiv 2305.18409",
        traits={"differentiable", "stateful", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"gramian"},
    )
