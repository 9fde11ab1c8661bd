"""AutoScale: static weights that balance the gradients of the first steps, and are fixed afterwards."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, hookimpl, keyed
from gradhomog_plugins._losses import exponential_weights
from gradhomog_plugins.multiadam import root_of_squares


class AutoScale(Homogenizer):
    """Static weights, inverse to the root-mean-square norms of the first rows of each task.

        v_i = 1/T Σ_{t ≤ T} ‖g_i(t)‖²,  T the warm-up; before its end, over the steps until now
        d = 1/N Σ_i ω_i g_i,  ω_i ∝ 1/√v_i with mean 1

    Args:
        warmup: T ≥ 1, the number of steps of a task in which its gradient is measured. Then v_i is fixed.

    Use it when no weights have been tuned: in the suite its error is near that of tuned weights, at every scale of a
    loss (docs/results/auto.md). `StepReport.weights` holds them: `static` with these weights in another training. It is
    harmful where the norms of the first steps do not last, as for a task that learns much faster than the others, and
    where a gradient is mostly noise, which has a large norm and therefore gets a small weight. It does not resolve
    conflicts.

    A factor of one loss divides its weight, so that it has no effect, from the first step on. Weights of equal norms
    are 1. The warm-up of a task begins with its first row that is not zero; until then its ω is the geometric mean of
    the others.

    Differentiable in the rows, with v before the step as a constant.

    State: by key, √v and the number of measured steps.

    Cost: one gradient per task in the warm-up; then one backward pass.

    Source: Yang et al. 2025, "AutoScale: Linear Scalarization Guided by Multi-Task Optimization Metrics", arXiv
    2508.13979: a first phase in which weights are chosen by metrics of the optimization, and a second with fixed
    weights. The metric is the similarity of gradient magnitudes (Yu et al. 2020, arXiv 2001.06782, definition 2), which
    these weights maximize: 1 / ‖g_i‖ makes all magnitudes equal.

    Deviations: only the metric and the two phases are the paper's; no reference code was found to compare with. (1) One
    mean over the warm-up instead of a search in windows of the training, so that factors of losses cancel exactly.
    (2) T is a number of steps. (3) The paper's other metrics are not included: for balanced losses see
    `scale_invariant`; a low condition number of the Gramian was measured, and was not better.

    >>> import torch, gradhomog
    >>> pipe, rows = gradhomog.pipeline("autoscale(warmup=1)"), torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    >>> pipe.combine(rows), pipe.combine(10 * rows[:, [1, 0]])  # w = 1/3, 1
    (tensor([0.7500, 0.7500]), tensor([7.5000, 7.5000]))
    >>> pipe.combine(torch.ones(2, 2))
    tensor([1., 1.])
    """

    weights_absent = True
    state_names = {"roots": dict[str, float], "counts": dict[str, float]}
    reads_rows_in_every_step = False

    def __init__(self, warmup: Annotated[int, Ge(1)] = 20) -> None:
        self.warmup = warmup
        self.roots: dict[str, float] = {}  # √v
        self.counts: dict[str, float] = {}

    def mix(self, step: Step) -> Tensor | StageResult:
        roots, absent = keyed.read(self.roots, step.names, 0.0), keyed.read(self.roots, step.absent_names, 0.0)
        counts = keyed.read(self.counts, step.names, 0.0)
        if min(counts) >= self.warmup:
            return inverse_weights(roots, absent)
        means = root_of_squares(roots * (counts / (counts + 1)).sqrt(), step.norms() * (1 / (counts + 1)).sqrt())
        is_measured = (counts < self.warmup) & (means > 0)
        roots, counts = torch.where(is_measured, means, roots), counts + is_measured
        state = {
            "roots": keyed.write(self.roots, step.names, roots),
            "counts": keyed.write(self.counts, step.names, counts),
        }
        return StageResult(inverse_weights(roots, absent), aux=state)

    def update(self, step: Step) -> Mapping[str, Any]:
        return step.aux or {}


def inverse_weights(roots: Tensor, absent: Tensor) -> Tensor:
    """Return weights ∝ 1/√v of the tasks in a step, whose mean with those of absent tasks is one.

    The weight of a task with v = 0, whose gradient was not measured, is the geometric mean of the others.
    """
    whole = torch.cat([roots, absent])
    known = whole > 0
    logarithms = -torch.where(known, whole, 1.0).log()
    typical = logarithms[known].mean() if bool(known.any()) else torch.zeros((), dtype=torch.float64)
    logarithms = torch.where(known, logarithms, typical)
    return exponential_weights(logarithms[: len(roots)], logarithms[len(roots) :])


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=AutoScale,
        summary="static weights from the norms of the first gradients, then one backward pass per step",
        reference="Yang et al. 2025, arXiv 2508.13979",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"norms"},
    )
