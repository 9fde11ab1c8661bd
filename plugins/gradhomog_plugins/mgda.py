"""MGDA: the shortest vector in the convex hull of the gradients."""

from typing import Literal

import torch
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, gramian_rounding, hookimpl, minimum_norm_weights
from gradhomog_plugins import EQUIVARIANT, _losses

# Largest ratio of two losses: the solver squares the rows' norms, and float64 overflows at 1e308.
MAX_LOSS_RATIO = 1e100


class MGDA(Homogenizer):
    """The common descent direction of smallest norm: the shortest vector in the convex hull of the rows.

        d = Σ_i α_i g_i,  α = argmin ‖Σ_i α_i g_i‖² over α ≥ 0, Σ_i α_i = 1
        ⟨d, g_i⟩ ≥ ‖d‖² for every task, with equality where α_i > 0; d = 0 if and only if the point is Pareto stationary

    Args:
        normalize: before solving, divide each row by `"l2"`: its norm; `"loss"`: its task's loss, which must be
            positive; `"loss+"`: both. The resulting weights multiply the undivided rows. `"none"` is the paper's
            method. If several sets of weights are optimal, as for dependent rows, the order of the tasks decides
            between them.
        on: the vectors of the inner products G: `"parameters"`, the rows; or `"features"`, the derivatives of the
            losses w.r.t. the features of all queries of a task, concatenated: the upper bound of section 3.3
            ("MGDA-UB"), for tasks that share inputs and so features, ‖Σ α_i g_i‖ ≤ ‖∂z/∂θ‖ ‖Σ α_i ∂L_i/∂z‖. If the
            tasks have different inputs, it is not a bound.

    Use it when rows conflict and every task must improve in every step. d is dominated by short rows: tasks that have
    nearly converged shorten the step for all, and losses of small unit decide the direction; `normalize` reduces this.
    With noisy gradients its weights are biased (see `moco` and `cr_mogm`), and near the Pareto front d vanishes.

    Exact: see `gradhomog.minimum_norm_weights`. With `normalize`, the direction of float32 rows that are all within an
    angle θ is that of the same rows in float64 up to 3e-7/θ² (1e-3 for 1 degree), because rows of other lengths are
    multiplied by weights of nearly dependent ones.

    Differentiable in the rows (and losses) where the set of tasks with α_i > 0 does not change.

    State: none.

    Cost: 0.2 ms for 16 tasks.

    Source: Désidéri 2012 (doi 10.1016/j.crma.2012.03.014); Sener and Koltun 2018, arXiv 1810.04650, algorithm 2;
    `normalize` is an option of their code that the paper does not mention.

    Deviations: (1) An exact active-set solver. The authors' code stops after 250 Frank–Wolfe steps and gives dominated
    tasks 0.1 %; Frank–Wolfe with TorchJD 0.18's defaults returns vectors up to 4.3 times too long for 32 tasks with
    norms from 0.1 to 10 (measured). (2) With `normalize`, the weights multiply the undivided rows, as in the authors'
    code, whose weights are those of the losses. LibMTL's `mgda_gn` multiplies the divided rows, except with `rep_grad`:
    its direction is another one, for `"l2"` at most 1 long. (3) A zero row is divided by 1; LibMTL divides 0 by 0.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("mgda").combine(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    tensor([0.4000, 0.8000])
    """

    def __init__(
        self,
        normalize: Literal["none", "l2", "loss", "loss+"] = "none",
        on: Literal["parameters", "features"] = "parameters",
    ) -> None:
        self.on, self.normalize = on, normalize
        self.needs = {"gramian" if on == "parameters" else "features"} | ({"losses"} if "loss" in normalize else set())

    def mix(self, step: Step) -> StageResult:
        if self.on == "parameters":
            gramian, rounding = step.gramian(), gramian_rounding(step.dtype)
        else:
            gramian, rounding = feature_gramian(step.feature_grads), gramian_rounding(torch.float64)
        if self.normalize != "none":
            factors = self._factors(step, gramian)
            gramian = factors[:, None] * gramian * factors
        solution = minimum_norm_weights(gramian, rounding)
        return StageResult(step.tasks * solution.weights, converged=bool(solution.converged))

    def _factors(self, step: Step, gramian: Tensor) -> Tensor:
        """Return the factor of each row in the optimization problem, `[tasks]`."""
        factors = torch.ones_like(gramian[0])
        if self.normalize in ("l2", "loss+"):
            squares = gramian.diagonal()
            # One instead of zero, because the derivative of the root is infinite at zero.
            factors = factors / torch.where(squares > 0, squares, torch.ones_like(squares)).sqrt()
        if self.normalize in ("loss", "loss+"):
            losses = _losses.positive(step, f"because normalize={self.normalize!r} divides rows by them")
            least = losses.min().detach()
            relative = losses / least  # a common factor of all rows changes no weight
            expected = f"no loss must be more than {MAX_LOSS_RATIO:g} times the smallest, {least.item():g}"
            _losses.require_valid(relative <= MAX_LOSS_RATIO, step, expected, "Scale the losses to similar units.")
            factors = factors / relative
        return factors


def feature_gramian(feature_grads: Tensor) -> Tensor:
    """Return inner products of gradients w.r.t. features `[tasks, queries, features]`, float64 `[tasks, tasks]`.

    In the unit of the largest entry: a common factor of all rows changes no weight, but its square may underflow.
    """
    flat = feature_grads.flatten(1).double()
    largest = flat.detach().abs().amax()
    flat = flat / torch.where(largest > 0, largest, 1.0)
    return (flat @ flat.T).cpu()


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=MGDA,
        summary="the shortest vector in the convex hull of the gradients",
        reference="Désidéri 2012, doi 10.1016/j.crma.2012.03.014; Sener and Koltun 2018, arXiv 1810.04650",
        traits={"differentiable", "non_conflicting", *EQUIVARIANT},
        needs={"gramian", "losses", "features"},
    )
