"""AutoScale: static weights that balance the gradients of the first steps, and are fixed afterwards."""

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, hookimpl, keyed
from gradhomog_plugins._losses import exponential_weights

OUTLIER = 3.0
"""A norm counts as at most this multiple of the median: of 20 norms with one a thousand times longer, 1.2 times."""


class AutoScale(Homogenizer):
    """Static weights, inverse to the root-mean-square norms of the first rows of each task.

        v_i = 1/T Σ_{t ≤ T} min(‖g_i(t)‖, 3 m_i)²,  T the warm-up; before its end, over the steps until now
        m_i = the (upper) median of the ‖g_i(t)‖ > 0
        d = 1/N Σ_i ω_i g_i,  ω_i ∝ 1/√v_i with mean 1

    Args:
        warmup: T ≥ 1, the number of steps of a task in which its gradient is measured. Then v_i is fixed.

    Use it when no weights have been tuned: in the suite its error is near that of tuned weights, at every scale of a
    loss (docs/results/auto.md). `StepReport.weights` holds them: `static` with these weights in another training. It is
    harmful where the norms of the first steps do not last, as for a task that learns much faster than the others, and
    where a gradient is mostly noise, which has a large norm and therefore gets a small weight. It does not resolve
    conflicts.

    A factor of one loss divides its weight, so that it has no effect on the direction of d, from the first step on; its
    length depends on it, as the mean weight is one. Weights of equal norms are 1. The warm-up of a task begins with its
    first row that is not zero; until then its ω is the geometric mean of the others. A single long gradient among
    otherwise equal norms, at any of three or more steps of the warm-up, multiplies v_i by at most 1 + 8/T.

    Differentiable in the rows of the warm-up, with earlier norms as constants.

    State: by key, the norms of the warm-up.

    Cost: one gradient per task in the warm-up; then one backward pass, and 0.01 ms for the weights, which are kept.

    Source: Yang et al. 2025, "AutoScale: Linear Scalarization Guided by Multi-Task Optimization Metrics", arXiv
    2508.13979: a first phase in which weights are chosen by metrics of the optimization, and a second with fixed
    weights. The metric is the similarity of gradient magnitudes (Yu et al. 2020, arXiv 2001.06782, definition 2), which
    these weights maximize: 1 / ‖g_i‖ makes all magnitudes equal.

    Deviations: only the metric and the two phases are the paper's; no reference code was found to compare with. (1) One
    mean over the warm-up instead of a search in windows of the training, so that factors of losses cancel exactly.
    (2) T is a number of steps. (3) The paper's other metrics are not included: for balanced losses see
    `scale_invariant`; a low condition number of the Gramian was measured, and was not better. (4) The bound of 3 m_i.
    Without it one gradient a thousand times longer than the others makes the weight 200 times smaller, for good.

    >>> import torch, gradhomog
    >>> pipe, rows = gradhomog.pipeline("autoscale(warmup=1)"), torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    >>> pipe.combine(rows), pipe.combine(10 * rows[:, [1, 0]])  # w = 1/3, 1
    (tensor([0.7500, 0.7500]), tensor([7.5000, 7.5000]))
    >>> pipe.combine(torch.ones(2, 2))
    tensor([1., 1.])
    """

    weights_absent = True
    state_names = {"norms": dict[str, list[float]]}
    reads_rows_in_every_step = False

    def __init__(self, warmup: Annotated[int, Ge(1)] = 20) -> None:
        self.warmup = warmup
        self.norms: dict[str, list[float]] = {}

    def mix(self, step: Step) -> Tensor | StageResult:
        earlier = {name: tuple(self.norms.get(name, ())) for name in (*step.names, *step.absent_names)}
        if all(len(earlier[name]) >= self.warmup for name in step.names):
            whole = fixed_weights(tuple(earlier[name] for name in (*step.names, *step.absent_names)))
            return whole[: step.tasks].clone()  # the caller may modify those of the report
        measured = {
            name: norm
            for name, norm in keyed.mean(step.names, step.norms()).items()
            if len(earlier[name]) < self.warmup and (earlier[name] or norm > 0)
        }
        roots = {name: bounded_root_mean_square(norms, measured.get(name)) for name, norms in earlier.items()}
        whole = torch.stack([roots[name] for name in (*step.names, *step.absent_names)])
        return StageResult(exponential_weights(inverse_logarithms(whole))[: step.tasks], aux=measured)

    def update(self, step: Step) -> Mapping[str, Any]:
        new = {name: [*self.norms.get(name, []), float(norm)] for name, norm in (step.aux or {}).items()}
        return {"norms": {**self.norms, **new}} if new else {}


def bounded_root_mean_square(norms: Sequence[float], last: Tensor | None = None) -> Tensor:
    """Return √v of norms and the last one, which may have a graph; zero if all are."""
    values = torch.tensor(norms, dtype=torch.float64)
    if last is not None:
        values = torch.cat([values, last[None]])
    nonzero = values[values > 0]
    if not len(nonzero):
        return torch.zeros((), dtype=torch.float64)
    # The upper one: of two norms the first may be that of a task at its minimum (suite, `forgetting`: 6 %, else 47).
    median = nonzero.sort().values[len(nonzero) // 2]
    return median * (values / median).clamp_max(OUTLIER).square().mean().sqrt()


@functools.lru_cache(maxsize=256)
def fixed_weights(norms: tuple[tuple[float, ...], ...]) -> Tensor:
    """Return the weights after the warm-up, which are computed once for the norms of a set of tasks."""
    return exponential_weights(inverse_logarithms(torch.stack([bounded_root_mean_square(each) for each in norms])))


def inverse_logarithms(roots: Tensor) -> Tensor:
    """Return log 1/√v; for a task with v = 0 the mean of the others, or zero without others."""
    known = roots > 0
    logarithms = -torch.where(known, roots, 1.0).log()
    typical = logarithms[known].mean() if bool(known.any()) else torch.zeros((), dtype=torch.float64)
    return torch.where(known, logarithms, typical)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=AutoScale,
        summary="static weights from the norms of the first gradients, then one backward pass per step",
        reference="Yang et al. 2025, arXiv 2508.13979",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"norms"},
    )
