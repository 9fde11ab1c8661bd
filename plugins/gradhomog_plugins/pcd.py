"""PCD: the direction nearest to the primary task's gradient that improves every other task by a given share."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from annotated_types import Interval, MinLen
from torch import Tensor

from gradhomog import (
    Homogenizer,
    HomogenizerSpec,
    StageResult,
    Step,
    dual_cone_weights,
    gramian_rounding,
    hookimpl,
    keyed,
)
from gradhomog_plugins import _per_task
from gradhomog_plugins._primary import Primary, primary_tasks

# The last coordinate of a projection on the cone whose exact value is zero is up to 1.5 times the rounding of the terms
# that cancel in it (for 600 random programs with 2 to 8 dependent rows, float32 and float64).
EXCLUSIVE = 4.0

Share = Annotated[float, Interval(ge=0, le=1)]


class PCD(Homogenizer):
    """Change the primary task's row as little as necessary for every other task to improve by a share of its best.

        v_i ← β v_i + (1 − β) ‖g_i‖²,  ĝ_i = g_i / √(v_i / (1 − β^t)),  v_i = 0 before the first step
        d̃ = argmin ½ ‖d̃ − ĝ_1‖² over ⟨ĝ_j, d̃⟩ ≥ τ_j ‖ĝ_j‖² for all j ≠ 1;  task 1 is the primary task
        d = ‖g_1‖ / ‖d̃‖ · d̃;  d̃ = ĝ_1 + Σ_j μ_j ĝ_j with μ_j ≥ 0

    Args:
        primary: the slot (position in the batch, from 0) or the domain of the primary task.
        tau: τ in [0, 1]: one number for all other tasks; a list by slot, with a number for the primary slot that has no
            effect; or a dict by domain with the entry `"*"` for other domains (0 without it). With 0, no other loss
            rises, to first order. With τ, d̃ (before its length is set to ‖g_1‖) decreases task j by at least τ times
            as much as ĝ_j does.
        beta: β in [0, 1), decay of the averages of squared norms. 0 divides each row by its norm.

    Use it when one loss is the aim and the others are constraints or regularizers, such as sparsity, physics or an
    auxiliary task, and no weights are known for them: factors of single losses have no effect. It is harmful where all
    tasks matter equally. d may conflict with the primary row if a τ_j is large; for opposite rows it does for
    every τ > 0.

    Constraints that exclude each other, for example those of two opposite rows with τ > 0, are all ignored: d = g_1.
    Float32 rows count as opposite within about 0.1 degrees (bfloat16: 1 degree). A zero row has no constraint. If g_1
    or d̃ is zero, or d̃ is rounding, as for a row opposite to g_1 and τ = 0, d = 0. A batch must have exactly one
    primary task.

    Differentiable in the rows where the set of tasks with μ_j > 0 does not change, with the averages before the step as
    constants.

    State: by key, v and 1 − β^t.

    Cost: one program of N×N. A whole step takes 0.9 ms for 2 tasks and 1.5 ms for 16; TorchJD's takes 0.5 and 5.6 ms.

    Source: Varam and AlHajri 2026, "Not All Objectives Are Born Equal: Priority-Constrained Descent", arXiv 2606.29521,
    algorithm 1 and definitions 4.1 and 4.5, as in the authors' code.

    Deviations: (1) No epsilon: the authors' code and TorchJD 0.18 add 1e-8 to v̂, so that rows with norms below 1e-4
    are not divided by them, and their τ is less. (2) The program is solved by the projection on a cone
    (`gradhomog.dual_cone_weights`) in one more dimension, the form of Lawson and Hanson 1974, section 23.4; the
    authors' code enumerates subsets (2^(N−1)), TorchJD uses an active set. (3) Constraints count as exclusive relative
    to the rounding of the rows; the authors' and TorchJD's tolerance is 1e-9 for float64 rows. (4) Averages by key; t
    counts the steps of each task. (5) Differentiable.

    >>> import torch, gradhomog
    >>> rows = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
    >>> gradhomog.pipeline("pcd(tau=0)").combine(rows)  # orthogonal to the second row, of the length of the first
    tensor([0.7071, 0.7071])
    """

    state_names = {"squares": dict[str, float], "weight_sums": dict[str, float]}

    def __init__(
        self,
        primary: Primary = 0,
        tau: Share | Annotated[Sequence[Share], MinLen(1)] | Mapping[str, Share] = 0.02,
        beta: Annotated[float, Interval(ge=0, lt=1)] = 0.999,
    ) -> None:
        self.primary, self.tau, self.beta = primary, tau, beta
        self.squares: dict[str, float] = {}
        self.weight_sums: dict[str, float] = {}

    def mix(self, step: Step) -> StageResult:
        gramian, keys = step.gramian(), step.names
        is_primary = primary_tasks(self.primary, step, "exactly one task in every batch", only_one=True)
        before = keyed.read(self.squares, keys, 0.0)
        squares = self.beta * before + (1 - self.beta) * gramian.diagonal()
        weight_sums = self.beta * keyed.read(self.weight_sums, keys, 0.0) + (1 - self.beta)
        shares = _per_task.numbers("tau", self.tau, step, default=0.0)
        weights, converged = constrained_weights(
            gramian, squares / weight_sums, is_primary.tolist().index(True), shares, gramian_rounding(step.dtype)
        )
        state = {
            "squares": keyed.write(self.squares, keys, squares),
            "weight_sums": keyed.write(self.weight_sums, keys, weight_sums),
        }
        return StageResult(step.tasks * weights, aux=state, converged=converged)

    def update(self, step: Step) -> Mapping[str, Any]:
        return dict(step.aux)


def constrained_weights(
    gramian: Tensor, squares: Tensor, primary: int, tau: Tensor, rounding: float
) -> tuple[Tensor, bool]:
    """Return weights w with d = Σ_i w_i g_i, float64 `[tasks]`, and True if the solver converged.

    Args:
        gramian: float64 `[tasks, tasks]`.
        squares: v̂, float64 `[tasks]`.
        primary: index of the primary task.
        tau: τ, float64 `[tasks]`.
        rounding: rounding of the Gramian relative to the norms of the rows.
    """
    lengths = gramian.diagonal()
    present = lengths > 0
    norms = torch.where(present, lengths, 1.0).sqrt()
    plain = torch.zeros_like(lengths)
    plain[primary] = 1.0
    constrained = present & (plain == 0)
    if not (bool(present[primary]) and bool(constrained.any())):
        return plain, True
    unit = gramian / torch.outer(norms, norms)
    # With d̃ in units of ‖ĝ_1‖ and rows of norm one: ⟨u_j, d̃ − u_1⟩ ≥ h_j.
    sizes = norms / torch.where(present, squares, 1.0).sqrt()  # ‖ĝ_i‖
    missing = torch.where(constrained, tau * sizes / sizes[primary] - unit[primary], 0.0)
    most = missing.detach().amax()
    if most <= 0:
        return plain, True
    multipliers, converged = shortest_correction(
        unit, torch.where(constrained, missing / most, 0.0), constrained, rounding
    )
    if multipliers is None:
        return plain, True
    direction = plain + multipliers * most
    square = direction @ unit @ direction
    if square <= rounding * direction.abs().sum() ** 2:
        return 0.0 * direction, converged
    return direction / norms * (norms[primary] / square.sqrt()), converged


def shortest_correction(
    unit: Tensor, missing: Tensor, constrained: Tensor, rounding: float
) -> tuple[Tensor | None, bool]:
    """Return μ ≥ 0 of the shortest x = Σ_j μ_j u_j with ⟨u_j, x⟩ ≥ h_j, or None if there is none, and convergence.

    Let f be the unit vector of one more dimension, and r the projection of f on the vectors that have no negative inner
    product with f and with all e_j = −(u_j, h_j). Then r = f + Σ_j y_j e_j, y ≥ 0, is proportional to (−x, 1), and is
    zero if no x exists (Lawson and Hanson 1974, section 23.4). Row 0 of the Gramian below is f.
    """
    rows = torch.where(torch.outer(constrained, constrained), unit + torch.outer(missing, missing), 0.0)
    corner = torch.ones_like(missing[:1])
    lifted = torch.cat([torch.cat([corner, -missing])[None], torch.cat([-missing[:, None], rows], dim=1)])
    start = torch.zeros_like(lifted[0])
    start[0] = 1.0
    weights, converged = dual_cone_weights(lifted, start, rounding)
    rest = weights[0] - weights[1:] @ missing  # the last coordinate of r, 1/(1 + ‖x‖²)
    if rest <= EXCLUSIVE * rounding * weights.sum() ** 2:
        return None, bool(converged)
    return weights[1:] / rest, bool(converged)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=PCD,
        summary="the direction nearest to a primary gradient that gives all other tasks a share of their progress",
        reference="Varam and AlHajri 2026, arXiv 2606.29521",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"gramian"},
    )
