"""NTK: weights inversely proportional to the traces of the tangent kernels of the tasks' residuals."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, hookimpl, keyed
from gradhomog_plugins import _losses


class NTK(Homogenizer):
    """Weights λ_i that make the mean squared gradients of all tasks' residuals equal, as rates of gradient descent.

        L_i = 1/n_i Σ_m r_im²,  t_i = 1/n_i tr K_i = 1/n_i Σ_m ‖∂r_im/∂θ‖²,  λ_i = Σ_j t_j / t_i
        d = Σ_i λ_i g_i / Σ_j λ_j;  paper's scale: d = Σ_i λ_i g_i

    Args:
        every: steps between two computations of the traces; the steps between use the last traces.
        probes: number of random vectors of the estimate; a task with at most this many residuals has an exact trace.
        average: β in [0, 1), the weight of the earlier traces in t ← β t + (1 − β) t_new.
        seed: seed of the random vectors.

    Use it when each loss is a mean square of residuals, as in physics-informed networks, and the residuals of one task
    fall much faster than those of another. Pass `residuals` to `gradhomog.backward` or `gradhomog.loss`. It needs one
    backward pass per step, and between the steps with traces nothing else. It does not resolve conflicts, and does not
    depend on noise in the targets.

    λ does not depend on the values of the residuals, but on their derivatives only: for a linear model it is constant.
    The estimate of a trace is unbiased. The standard deviation of one probe is at most √2 times the trace, where one
    eigenvalue of K_i dominates, and decreases as 1/√probes (measured with 16 probes on a Helmholtz problem: 26 % of the
    trace for the equation, and for a boundary about 35 %, the bound); `average` decreases it further. A task with trace
    zero has a zero row; it has the weight one and no effect on the others. A new key causes new traces of all tasks.
    Kernels are those w.r.t. the shared parameters.

    Differentiable in the rows, and in the traces in steps that compute them.

    State: t by key.

    Cost: in every `every`-th step up to `probes` backward passes for each task; otherwise O(N).

    Source: Wang, Yu and Perdikaris 2022, "When and why PINNs fail to train: A neural tangent kernel perspective", arXiv
    2007.14527, algorithm 1. The estimate of traces: Hutchinson 1989, doi 10.1080/03610918908812806.

    Deviations: (1) The trace is divided by the number of residuals, as in the authors' later code (jaxpi), so that more
    points of a boundary do not change its weight; the paper and its code (PINNsNTK) use tr K_i, which gives the same
    weights for equal numbers. (2) Estimated traces, as described above; both codes compute K, by one pass for each
    residual. (3) `every` is 100, as in PINNsNTK; jaxpi has 1000. Weights of a step come from the traces of this step;
    PINNsNTK computes them after it. (4) Averages of traces, not of weights as in jaxpi, because the traces are unbiased
    and their inverses are not. (5) No epsilon; jaxpi adds 1e-5 of the mean trace. (6) Other codes have other quantities
    under this name: PINNacle ‖∂/∂θ Σ_m r_m‖², the sum of all entries of K, which is a single probe without random
    signs; PhysicsNeMo-Sym ‖∂√L/∂θ‖; PaddleScience ‖∂L/∂θ‖.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("ntk")
    >>> pipe.combine(torch.tensor([[4.0, 0.0], [0.0, 1.0]]), kernel_traces=[3.0, 1.0])  # weights 1/2 and 3/2
    tensor([1.0000, 0.7500])
    """

    weights_absent = True
    state_names = {"traces": dict[str, float]}

    def __init__(
        self,
        every: Annotated[int, Ge(1)] = 100,
        probes: Annotated[int, Ge(1)] = 16,
        average: Annotated[float, Interval(ge=0, lt=1)] = 0.0,
        seed: int = 0,
    ) -> None:
        self.every, self.probes, self.average, self.seed = every, probes, average, seed
        self.traces: dict[str, float] = {}  # t

    def mix(self, step: Step) -> StageResult:
        keys = step.names
        traces, state = keyed.read(self.traces, keys, 0.0), {}
        if not set(keys) <= self.traces.keys() or step.number % self.every == 0:
            kept = torch.tensor([self.average if key in self.traces else 0.0 for key in keys], dtype=torch.float64)
            traces = kept * traces + (1 - kept) * step.kernel_traces(self.probes)
            state = {"traces": keyed.write(self.traces, keys, traces)}
        traces = torch.cat([traces, keyed.read(self.traces, step.absent_names, 0.0)])
        inverses, mean = inverse_traces(traces)
        return StageResult(torch.where(inverses > 0, inverses / mean, 1.0)[: step.tasks], aux=(traces, state))

    def paper_scale(self, step: Step) -> Tensor:
        traces: Tensor = step.aux[0]
        inverses, mean = inverse_traces(traces)
        total = (traces / least_trace(traces)).sum()
        advice = "Divide the residuals of the other tasks by a constant, or use scale='mean'."
        _losses.require_at_most(total * inverses, step, "λ = Σ t / t", advice)
        return step.tasks * total * mean

    def update(self, step: Step) -> dict[str, Any]:
        return dict(step.aux[1])

    def measured(self, step: Step) -> Mapping[str, float | Sequence[float]]:
        return {"traces": step.aux[0][: step.tasks].tolist()}


def inverse_traces(traces: Tensor) -> tuple[Tensor, Tensor]:
    """Return min t/t_i, or 0 for t_i = 0, `[tasks]`, and the mean of those that are not zero, or 1 if all are zero.

    >>> inverse_traces(torch.tensor([4.0, 1.0, 0.0]))
    (tensor([0.2500, 1.0000, 0.0000]), tensor(0.6250))
    """
    present = traces > 0
    inverses = torch.where(present, least_trace(traces) / torch.where(present, traces, 1.0), 0.0)
    mean = inverses.sum() / present.sum().clamp_min(1)
    return inverses, torch.where(present.any(), mean, 1.0)


def least_trace(traces: Tensor) -> Tensor:
    """Return the least trace that is not zero, as a constant; 1 if all are zero."""
    least = torch.where(traces > 0, traces, torch.inf).amin().detach()
    return torch.where(least < torch.inf, least, 1.0)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=NTK,
        summary="weights inversely proportional to the traces of the residuals' tangent kernels",
        reference="Wang, Yu and Perdikaris 2022, arXiv 2007.14527",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"kernel_traces"},
    )
