"""PeakScale: weights inverse to the largest running norm of each task's gradient, which is measured in few steps."""

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, hookimpl, keyed
from gradhomog_plugins._losses import exponential_weights, inverse_logarithms

OUTLIER = 3.0
"""A norm counts as at most this multiple of the median of the warm-up, and later of the running norm: of 20 norms with
one a thousand times longer, 1.2 times."""

AVERAGE = 0.9
"""α, the share of the earlier measurements in the running mean square, a mean over some ten measurements."""


MULTIPLIER = 2654435769
"""2³² divided by the golden ratio: its multiples modulo 2³² are spread evenly (Knuth, volume 3, section 6.4)."""


class PeakScale(Homogenizer):
    """Weights inverse to the largest running norm of each task's gradient, which is measured in few steps.

        warm-up, T steps of a task:  v_i = 1/t Σ_{s ≤ t} min(‖g_i(s)‖, 3 m_i)²
            m_i = the (upper) median of the ‖g_i(s)‖ > 0
        then, on average in one of S (N − 1) + 1 steps:  v_i ← α v_i + (1 − α) min(‖g_i‖, 3 √v_i)²,  α = .9
        d = 1/N Σ_i ω_i g_i,  ω_i ∝ 1/max √v_i with mean 1, the maximum since the end of the warm-up

    Args:
        warmup: T ≥ 1, the number of steps of a task in which its gradient is measured.
        spacing: S ≥ 0: later measurements add one backward pass to S others; 0: every step is measured.

    Use it when no weights have been tuned: in the suite its error is near that of tuned weights, at every scale of a
    loss (docs/results/auto.md). `StepReport.weights` holds them: `static` with these weights in another training. It is
    harmful where a gradient is mostly noise, which has a large norm and therefore gets a small weight, and where a task
    should count less than its gradient. It does not resolve conflicts.

    The largest norm and not the last one, because the gradient of a task that has converged is small and mostly noise,
    and its inverse is a large, wrong weight. A gradient that grows, as that of a new head, decreases its weight.

    A factor of one loss divides its weight, so that it has no effect on the direction of d, from the first step on; its
    length depends on it, as the mean weight is one. Weights of equal norms are 1. The warm-up of a task begins with its
    first row that is not zero; until then its ω is the geometric mean of the others. A single long gradient among
    otherwise equal norms multiplies v_i by at most 1 + 8/T in the warm-up of three or more steps, and by 1.8 later.

    Differentiable in the rows of measured steps, with earlier norms as constants.

    State: by key, the norms of the warm-up; then √v_i and its maximum.

    Cost: one gradient per task in the warm-up and in one of S (N − 1) + 1 steps; one backward pass in the others, and
    0.01 ms for the weights, which are kept.

    Source: new. Weights that make all magnitudes equal, from a first phase: Yang et al. 2025, "AutoScale", arXiv
    2508.13979, with the similarity of magnitudes of Yu et al. 2020, arXiv 2001.06782, definition 2, as the metric. The
    maximum of a running mean square is that of AMSGrad (Reddi, Kale, Kumar 2018, arXiv 1904.09237, algorithm 2).

    Deviations: from AutoScale: (1) one mean over the warm-up instead of a search in windows of the training, so that
    factors of losses cancel exactly; (2) weights follow growing norms after it; (3) its other metrics are not included:
    a low condition number of the Gramian was measured, and was not better; (4) the bound of 3 m_i. Without it one
    gradient a thousand times longer than the others makes the weight 200 times smaller, for good.

    >>> import torch, gradhomog
    >>> pipe, rows = gradhomog.pipeline("peakscale(warmup=1)"), torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    >>> pipe.combine(rows), pipe.combine(10 * rows[:, [1, 0]])  # w = 1/3, 1
    (tensor([0.7500, 0.7500]), tensor([7.5000, 7.5000]))
    >>> pipe.combine(torch.ones(2, 2))
    tensor([1., 1.])
    """

    weights_absent = True
    state_names = {"norms": dict[str, list[float]], "running": dict[str, float], "largest": dict[str, float]}
    reads_rows_in_every_step = False

    def __init__(self, warmup: Annotated[int, Ge(1)] = 20, spacing: Annotated[int, Ge(0)] = 10) -> None:
        self.warmup, self.spacing = warmup, spacing
        self.norms: dict[str, list[float]] = {}  # of tasks in their warm-up
        self.running: dict[str, float] = {}  # √v of the others
        self.largest: dict[str, float] = {}

    def mix(self, step: Step) -> Tensor | StageResult:
        names = (*step.names, *step.absent_names)
        is_due = is_measured(step.number, self.spacing * (step.tasks - 1) + 1)
        if not is_due and all(name in self.largest for name in step.names):
            whole = fixed_weights(tuple(self._kept(name) for name in names))
            return whole[: step.tasks].clone()  # the caller may modify those of the report
        warming, running, found = {}, {}, {}
        for name, norm in keyed.mean(step.names, step.norms()).items():
            if name not in self.largest:
                if name in self.norms or norm > 0:
                    warming[name] = norm
                    found[name] = bounded_root_mean_square(self.norms.get(name, ()), norm)
            elif is_due:
                running[name] = moved_average(self.running[name], norm)
                found[name] = running[name].clamp_min(self.largest[name])
        others = {name: torch.tensor(self._kept(name), dtype=torch.float64) for name in names if name not in found}
        whole = torch.stack([(found | others)[name] for name in names])
        weights = exponential_weights(inverse_logarithms(whole))[: step.tasks]
        return StageResult(weights, aux=(warming, running))

    def _kept(self, name: str) -> float:
        """The norm of a task without its row in this step; 0 if it has had none."""
        largest = self.largest.get(name)
        return float(bounded_root_mean_square(self.norms.get(name, ()))) if largest is None else largest

    def update(self, step: Step) -> Mapping[str, Any]:
        if step.aux is None:
            return {}
        warming, measured = step.aux
        fixed_weights.cache_clear()  # those of earlier norms, which would fill it for the whole training
        norms = {**self.norms, **{name: [*self.norms.get(name, []), float(norm)] for name, norm in warming.items()}}
        running = {**self.running, **{name: float(root) for name, root in measured.items()}}
        for name in warming:
            if len(norms[name]) >= self.warmup:
                running[name] = float(bounded_root_mean_square(norms.pop(name)))
        largest = {name: max(root, self.largest.get(name, root)) for name, root in running.items()}
        return {"norms": norms, "running": running, "largest": largest}


def is_measured(number: int, period: int) -> bool:
    """True in one of `period` steps on average, spread evenly: groups of tasks that alternate are all measured."""
    return (number * MULTIPLIER) % 2**32 * period < 2**32


def moved_average(root: float, norm: Tensor) -> Tensor:
    """Return the root of the running mean square after a measurement."""
    relative = (norm / root).clamp_max(OUTLIER)
    return root * (AVERAGE + (1 - AVERAGE) * relative.square()).sqrt()


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
def fixed_weights(roots: tuple[float, ...]) -> Tensor:
    """Return the weights of steps without a measurement, which are computed once for the norms of a set of tasks."""
    return exponential_weights(inverse_logarithms(torch.tensor(roots, dtype=torch.float64)))


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=PeakScale,
        summary="weights from the largest norms of the gradients: one backward pass in most steps",
        reference="new, after Yang et al. 2025, arXiv 2508.13979",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"norms"},
    )
