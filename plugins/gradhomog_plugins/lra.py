"""LRA: scale auxiliary gradients to the largest entry of the primary gradient (learning-rate annealing)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Jacobian, StageResult, Step, hookimpl, keyed
from gradhomog_plugins import _losses
from gradhomog_plugins._columns import wide_dtype
from gradhomog_plugins._primary import Primary, primary_tasks

# The sum of so large weights is finite in float64.
LARGEST = 1e300
ADVICE = "Multiply the loss of this task by a constant, or use scale='mean'."


class LRA(Homogenizer):
    """Weights λ_i that scale the mean entry of each auxiliary row to the largest entry of the primary row.

        λ̂_i = max_p |g_rp| / mean_p |λ_i g_ip|,  λ_i ← (1 − α) λ_i + α λ̂_i,  λ_r = 1 for the primary task r
        d = Σ_i λ_i g_i / Σ_j λ_j;  paper's scale: d = Σ_i λ_i g_i

    Args:
        primary: r, the slot or the domain of the primary task: in a physics-informed network the residual of the
            differential equation. It must be in the first batch.
        alpha: α in (0, 1], the share of the new weight.
        weighted: True has λ_i in the denominator, as in the formula above and in the authors' code. False has mean_p
            |g_ip| there, as in algorithm 1.
        statistic: `"max"`: λ̂_i as above. Others, with standard deviation s (n − 1) and kurtosis k = mean ((g − mean
            g)/s)⁴ of the entries of a row, and M_i = mean |λ_i g_i|: `"std"`: s_r / s_i, inverse Dirichlet weighting
            (Maddu et al. 2022, arXiv 2107.00940); `"std_plus_max"`: (s_r + max |g_r|) / (s_i + M_i);
            `"std_times_mean"`: s_r mean |g_r| / (s_i M_i); `"std_over_kurtosis"`: (s_r / k_r) / (s_i / k_i), all three
            as in the code cvjena/GradStats4PINNs, which calls the second "mean + std".
        every: steps between changes of λ, from the first on, ≥ 1. That code has 5.
        minimum: the least λ_i, ≥ 0. That code has 1.

    Use it when one loss dominates the step by the size of its gradient, as the residual of a differential equation
    dominates boundary and initial conditions. It does not change cosines, so it does not resolve conflicts. It is
    harmful where the gradient of an auxiliary task is mostly noise, because this noise is scaled up, and where the
    primary task counts most: the weight of a row equal to the primary row exceeds one.

    For constant rows and α < 1, λ_i converges to √(max|g_r| / mean|g_i|) with λ_i in the denominator, and to max|g_r| /
    mean|g_i| without it: two methods with different weights. The default is the form of the authors' code. After a
    first step with λ_i = 1 it may be larger by orders of magnitude, and then falls by the factor 1 − α per step. With α
    = 1 and λ_i in the denominator it alternates between two values.

    λ_i keeps its value in a step without the primary task, and where the primary row or row i is zero. Several primary
    tasks, of one domain, give the mean of their numerators.

    Differentiable in the rows, with the weights before the step as constants.

    State: λ by key.

    Cost: two reads of the rows.

    Source: Wang, Teng and Perdikaris 2021, "Understanding and mitigating gradient pathologies in physics-informed
    neural networks", arXiv 2001.04536, algorithm 1.

    Deviations: (1) λ_i in the denominator, as in the authors' code (GradientPathologiesPINNs), in NSFnets (arXiv
    2003.06496) and in PINNacle; algorithm 1 and PhysicsNeMo-Sym omit it (`weighted`). (2) α = 0.1, as in the code of
    the authors and PINNacle; the paper recommends 0.9 for the share of the new weight, PhysicsNeMo-Sym has 0.01. (3)
    Largest and mean entry over all parameters, as in the paper; the authors' code omits biases and takes the mean of
    the layers' means. (4) λ changes in every step and before the step, as in algorithm 1; the authors' code changes it
    in every tenth step, after the step (`every`; the rows are computed in any case, so it saves nothing). (5) A single
    λ for each task; the authors' code has one λ for all boundaries together: add these losses to one. (6) No epsilon
    in the denominator; PhysicsNeMo-Sym adds 1e-8. (7) Other code (relative_balancing of ReLoBRaLo's authors)
    has the mean entry of the primary row in the numerator.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("lra(alpha=1, weighted=false, scale='paper')")
    >>> pipe.combine(torch.tensor([[8.0, 0.0], [0.0, 4.0]]))  # λ = 8 / mean(0, 4) = 4
    tensor([ 8., 16.])
    """

    weights_absent = True
    state_names = {"weights": dict[str, float]}

    def __init__(
        self,
        primary: Primary = 0,
        alpha: Annotated[float, Interval(gt=0, le=1)] = 0.1,
        weighted: bool = True,
        statistic: Literal["max", "std", "std_plus_max", "std_times_mean", "std_over_kurtosis"] = "max",
        every: Annotated[int, Ge(1)] = 1,
        minimum: Annotated[float, Ge(0)] = 0.0,
    ) -> None:
        self.primary, self.alpha, self.weighted = primary, alpha, weighted
        self.statistic, self.every, self.minimum = statistic, every, minimum
        self.weights: dict[str, float] = {}  # λ

    def mix(self, step: Step) -> StageResult:
        weights = self._new_weights(step)
        absent = keyed.read(self.weights, step.absent_names, 1.0)
        tasks, total = step.tasks + len(absent), weights.sum() + absent.sum()
        return StageResult(tasks * weights / total, aux=(weights, total * step.tasks / tasks))

    def paper_scale(self, step: Step) -> Tensor:
        weights: Tensor
        total: Tensor
        weights, total = step.aux
        _losses.require_at_most(weights, step, "λ", ADVICE)
        return total

    def update(self, step: Step) -> dict[str, Any]:
        return {"weights": keyed.write(self.weights, step.names, step.aux[0])}

    def measured(self, step: Step) -> Mapping[str, float | Sequence[float]]:
        return {"weights": step.aux[0].tolist()}

    def _new_weights(self, step: Step) -> Tensor:
        """Return λ of this step, float64 `[tasks]`."""
        before = keyed.read(self.weights, step.names, 1.0)
        primary = primary_tasks(self.primary, step, "" if self.weights else "a task in the first batch")
        if not bool(primary.any()) or step.number % self.every:
            return before
        numerators, denominators = self._statistics(step.jacobian, before if self.weighted else torch.ones_like(before))
        numerator = numerators[primary].mean()
        defined = (denominators > 0) & (numerator > 0)
        targets = numerator / torch.where(defined, denominators, 1.0)
        weights = torch.where(defined, torch.lerp(before, targets, self.alpha), before).clamp(min=self.minimum)
        weights = torch.where(primary, 1.0, weights)
        _losses.require_at_most(weights, step, "λ", ADVICE, LARGEST)
        return weights

    def _statistics(self, jacobian: Jacobian, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numerator of each row as the primary one, and its denominator as another, float64 `[tasks]`."""
        largest, mean = entry_sizes(jacobian)
        if self.statistic == "max":
            return largest, factors * mean
        rows = torch.cat([block.reshape(len(block), -1) for _, block in jacobian.by_parameter()], 1)
        centred = rows.to(wide_dtype(rows))
        centred = centred - centred.mean(1, keepdim=True)
        deviation = torch.linalg.vector_norm(centred, dim=1) / max(rows.shape[1] - 1, 1) ** 0.5
        kurtosis = (centred / torch.where(deviation > 0, deviation, 1.0)[:, None]).pow(4).mean(1)
        deviation, kurtosis = torch.stack([deviation, torch.where(kurtosis > 0, kurtosis, 1.0)]).cpu().double()
        if self.statistic == "std_plus_max":
            return deviation + largest, deviation + factors * mean
        if self.statistic == "std_times_mean":
            return deviation * mean, deviation * factors * mean
        if self.statistic == "std_over_kurtosis":
            deviation = deviation / kurtosis
        return deviation, deviation


def entry_sizes(jacobian: Jacobian) -> tuple[Tensor, Tensor]:
    """Return the largest and the mean absolute entry of each row over all blocks, float64 `[tasks]` each."""
    largest, sums, count = [], [], 0
    for _, block in jacobian.by_parameter():
        matrix = block.reshape(len(block), block[0].numel())
        wide = wide_dtype(block)
        sums.append(torch.linalg.vector_norm(matrix, 1, dim=1, dtype=wide).double())
        # The largest entry of an empty block is not defined.
        present = matrix if matrix.shape[1] else matrix.new_zeros(len(block), 1)
        largest.append(torch.linalg.vector_norm(present, torch.inf, dim=1, dtype=wide).double())
        count += matrix.shape[1]
    # One copy for both.
    sizes = torch.stack([torch.stack(largest).amax(0), torch.stack(sums).sum(0)]).cpu()
    return sizes[0], sizes[1] / max(count, 1)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=LRA,
        summary="scales auxiliary gradients to the largest entry of the primary task's gradient",
        reference="Wang, Teng and Perdikaris 2021, arXiv 2001.04536",
        traits={"differentiable", "stateful", "scale_equivariant"},
        needs={"jacobian"},
    )
