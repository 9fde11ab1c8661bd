"""AutoScale: static weights that balance the gradients of the first steps, and are fixed afterwards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, gramian_rounding, hookimpl, keyed
from gradhomog_plugins._losses import exponential_weights


class AutoScale(Homogenizer):
    """Static weights, the geometric means of those that balance the rows of single steps of a warm-up.

        log w_i = 1/T Σ_{t ≤ T} log ŵ_i(t),  T the warm-up; before its end, over the steps until now
        norms:     ŵ = argmax Σ_{i<j} 2 a_i a_j / (a_i² + a_j²),  a_i = ŵ_i ‖g_i‖:  ŵ_i = 1 / ‖g_i‖
        condition: ŵ = argmin κ(diag(ŵ) G diag(ŵ)),  κ = λ_max / λ_min,  with Π_i a_i = 1
        d = 1/N Σ_i ω_i g_i,  ω_i = N w_i / Σ_j w_j

    Args:
        warmup: T ≥ 1, the number of steps of a task in which its gradient is measured. Then its w_i is fixed.
        criterion: the metric that the weights of a step optimize: `"norms"`, the similarity of gradient magnitudes, or
            `"condition"`, the condition number of the weighted Gramian. For two tasks they give the same weights.

    Use it when the norms of the gradients differ by a large factor, no weights have been tuned, and weights that change
    during training are unwanted. `StepReport.weights` holds them: `static` with these weights needs one backward pass,
    in a longer or another training. It is harmful where the norms of the first steps do not last, as for a task that
    learns much faster than the others, and where a gradient is mostly noise, which has a large norm and therefore gets
    a small weight. It does not resolve conflicts.

    Weights of a step come from the steps before it, so that the first step is the plain mean. A factor of one loss
    divides its weight, so that after the first step it has no effect. A task that appears later begins with the
    geometric mean of the others' w, and has a warm-up of its own. A zero row is not measured. With `"condition"`,
    dependent rows, for which κ is infinite, count by their norms alone. Equal norms are within a factor of N of the
    smallest κ (van der Sluis 1969; measured for 3 to 10 random rows: within 42 %), and exactly minimize the other
    common condition number, (tr G / N)^N / det G.

    Differentiable in the rows, with the weights as constants.

    State: by key, log w and the number of measured steps.

    Cost: one gradient per task, also after the warm-up, because the statistics that a pipeline reads are fixed when it
    is constructed; `"condition"` adds a minimization over N variables in each step of the warm-up (1 to 8 ms for 4
    tasks).

    Source: Yang et al. 2025, "AutoScale: Linear Scalarization Guided by Multi-Task Optimization Metrics", arXiv
    2508.13979: a first phase in which weights are chosen by optimization metrics in windows of the training, and a
    second phase with fixed weights. The similarity of magnitudes: Yu et al. 2020, arXiv 2001.06782, definition 2. The
    condition number of gradients: Senushkin et al. 2023, arXiv 2305.19000.

    Deviations: only the metrics and the two phases are the paper's. These details are ours; no reference code was found
    to compare with: (1) windows of one step, and geometric means over them, so that factors of losses cancel exactly;
    (2) T is a number of steps; (3) the best weights of a step in closed form (`"norms"`), or by BFGS (`"condition"`,
    whose variant is "Low Cond." in the paper's tables); (4) the paper's third metric, balanced loss values, is not
    included: see `scale_invariant`.

    >>> import torch, gradhomog
    >>> pipe, rows = gradhomog.pipeline("autoscale(warmup=1)"), torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    >>> [pipe.combine(rows).tolist() for _ in range(2)]  # w = 1/3, 1
    [[1.5, 0.5], [0.75, 0.75]]
    >>> pipe.combine(torch.ones(2, 2))
    tensor([1., 1.])
    """

    state_names = ("logarithms", "counts")

    def __init__(self, warmup: Annotated[int, Ge(1)] = 100, criterion: Literal["norms", "condition"] = "norms") -> None:
        self.warmup, self.criterion = warmup, criterion
        self.needs = {"norms"} if criterion == "norms" else {"gramian"}
        self.logarithms: dict[str, float] = {}  # log w
        self.counts: dict[str, float] = {}

    def mix(self, step: Step) -> Tensor:
        return exponential_weights(self._read(step.names))

    def update(self, step: Step) -> Mapping[str, Any]:
        names, counts = step.names, keyed.read(self.counts, step.names, 0.0)
        if not bool((counts < self.warmup).any()):
            return {}
        norms = step.norms() if self.criterion == "norms" else step.gramian().diagonal().sqrt()
        measured = (counts < self.warmup) & (norms > 0)
        found = -torch.where(measured, norms, 1.0).log()
        if self.criterion == "condition":
            found = found + best_conditioned(step.gramian(), gramian_rounding(step.dtype))
        logarithms = keyed.read(self.logarithms, names, 0.0)
        logarithms = logarithms + (found - logarithms) / (counts + 1)
        keys = [name for name, is_measured in zip(names, measured.tolist(), strict=True) if is_measured]
        return {
            "logarithms": keyed.write(self.logarithms, keys, logarithms[measured]),
            "counts": keyed.write(self.counts, keys, counts[measured] + 1),
        }

    def measured(self, step: Step) -> Mapping[str, float | Sequence[float]]:
        return {"weights": exponential_weights(self._read(step.names)).tolist()}

    def _read(self, names: Sequence[str]) -> Tensor:
        """Return log w, float64 `[tasks]`; for new tasks the mean of the others."""
        known = [self.logarithms[name] for name in names if name in self.logarithms]
        return keyed.read(self.logarithms, names, math.fsum(known) / len(known) if known else 0.0)


def best_conditioned(gramian: Tensor, rounding: float) -> Tensor:
    """Return log u, float64 `[tasks]`, with mean zero, that minimizes κ(diag(u) C diag(u)), C the matrix of cosines.

    Zeros if C is singular up to rounding; for two tasks zeros are the exact solution. Rows that are zero are left out.
    """
    result, norms = torch.zeros(len(gramian), dtype=torch.float64), gramian.diagonal().sqrt()
    present = (norms > 0).nonzero().flatten()
    if len(present) < 3:
        return result
    cosines = (gramian / torch.outer(norms, norms))[present][:, present].numpy()
    if np.linalg.eigvalsh(cosines)[0] <= rounding * len(cosines):
        return result
    from scipy.optimize import minimize  # a slow import that the default does not need

    def log_condition(logs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        scales = np.exp(logs)
        values, vectors = np.linalg.eigh(scales[:, None] * cosines * scales)
        return float(np.log(values[-1] / values[0])), 2 * (vectors[:, -1] ** 2 - vectors[:, 0] ** 2)

    # Quasi-convex, so a local minimum is the minimum; BFGS also converges where eigenvalues coincide (Lewis and Overton
    # 2013, doi 10.1007/s10107-012-0514-2).
    logs = minimize(log_condition, np.zeros(len(cosines)), jac=True, method="BFGS").x
    result[present] = torch.from_numpy(logs - logs.mean())
    return result


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=AutoScale,
        summary="static weights that balance the gradients of the first steps, fixed afterwards",
        reference="Yang et al. 2025, arXiv 2508.13979",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"norms", "gramian"},
    )
