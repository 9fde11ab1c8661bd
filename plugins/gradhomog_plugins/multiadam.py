"""MultiAdam: divide the gradient of each task by its own second moments, coordinate by coordinate."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, hookimpl, keyed, safe_sqrt
from gradhomog_plugins import _row_state
from gradhomog_plugins._row_state import RowState, broadcast_per_task


class MultiAdam(Homogenizer):
    """Give all rows the same root mean square over the steps in every coordinate, by second moments as in Adam.

        m_i ← β₁ m_i + (1 − β₁) g_i,  v_i ← β₂ v_i + (1 − β₂) g_i²,  m̂_i = m_i / (1 − β₁^t),  v̂_i = v_i / (1 − β₂^t)
        d = 1/N Σ_i s m̂_i / √v̂_i,  s = √(1/N Σ_j v̂_j), in every coordinate
        with `units="paper"`: d = 1/N Σ_i m̂_i / √v̂_i, the paper's step

    Args:
        beta1: β₁ in [0, 1), the average of the rows; 0 leaves momentum to the optimizer.
        beta2: β₂ in [0, 1).
        units: `"gradient"` multiplies by s, so that N identical rows g give g; `"paper"` is the paper's step, s = 1,
            whose length does not depend on the lengths of the rows.

    Use it when the gradients of the losses differ by orders of magnitude, and by other factors in each layer, as in
    physics-informed networks, and their noise is small. A gradient that is only noise gets the same magnitude as the
    others. It does not resolve conflicts: where two tasks disagree in sign, their normalized entries cancel.

    The paper's optimizer consists of two parts. The homogenizer is the part with one state per task: the second moments
    v and, with β₁ > 0, the first moments m. The optimizer is the rest: the learning rate and, with β₁ = 0, the
    momentum. Two combinations:

        multiadam                                with Adam(lr, betas=(0.99, 0.99))
        multiadam(beta1=0.99, units="paper")     with SGD(lr): the paper's optimizer, without ε

    In the first, Adam divides by the second moments of d, from which a constant s cancels. It is close to the authors'
    option `agg_momentum`, which applies Adam to the paper's step: exactly that, without ε and with β₁ = 0, is
    `multiadam(units="paper")` with Adam. Do not combine β₁ > 0 with an optimizer that has momentum, because rows would
    be averaged twice. A coordinate in which all rows of a task have been zero is zero in its row, with v̂ = 0 in s.

    Differentiable in the rows, with the moments before the step as constants; an entry that is zero has derivative
    zero.

    State: one row for every key for v, with β₁ > 0 two, in float32 or float64; and t. Rows with other names or shapes
    restart it.

    Cost: about six reads and four writes of N × params numbers, and the memory of two more copies of the rows,
    with β₁ > 0 of three.

    Source: Yao et al. 2023, "MultiAdam: Parameter-wise Scale-invariant Optimizer for Multiscale Training of
    Physics-informed Neural Networks", arXiv 2306.02816, algorithm 1; β₁ = β₂ = 0.99 there.

    Deviations: (1) The factor s and β₁ = 0 by default, as described above. (2) No ε; the paper adds 1e-8 to √v̂. (3)
    Each task is a separate group. The paper has two groups, residuals and boundary conditions: add the losses of a
    group to one loss. (4) t counts the steps of one task. (5) √v instead of v, because squares overflow float32 where
    rows do not. (6) Weight decay and amsgrad, which the code has as options, belong to the optimizer.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("multiadam").combine(torch.tensor([[300.0, 1.0], [4.0, -1.0]]))  # s = 212.15, 1
    tensor([212.1509,   0.0000])
    """

    state_names = {"means": RowState, "roots": RowState, "counts": dict[str, float]}

    def __init__(
        self,
        beta1: Annotated[float, Interval(ge=0, lt=1)] = 0.0,
        beta2: Annotated[float, Interval(ge=0, lt=1)] = 0.99,
        units: Literal["gradient", "paper"] = "gradient",
    ) -> None:
        self.beta1, self.beta2, self.units = beta1, beta2, units
        self.means: RowState = {}  # m
        self.roots: RowState = {}  # √v
        self.counts: dict[str, float] = {}

    def rows(self, step: Step) -> StageResult:
        keys = step.names
        saved, saved_means, saved_counts = _row_state.fitting(step, self.roots, self.means, self.counts)
        counts = keyed.read(saved_counts, keys, 0.0) + 1
        mean_corrections, root_corrections = 1 - self.beta1**counts, (1 - self.beta2**counts).sqrt()
        changed, all_means, all_roots = {}, {}, {}
        for name, row in step.jacobian.by_parameter():
            old = _row_state.read(saved.get(name, {}), keys, row)
            means = row.to(old.dtype)
            roots = all_roots[name] = root_of_squares(self.beta2**0.5 * old, (1 - self.beta2) ** 0.5 * means)
            if self.beta1:
                before = _row_state.read(saved_means.get(name, {}), keys, row)
                all_means[name] = torch.lerp(before, means, 1 - self.beta1)
                means = all_means[name] / broadcast_per_task(mean_corrections, roots)
            roots = roots / broadcast_per_task(root_corrections, roots)
            changed[name] = normalize(means, roots, rescale=self.units == "gradient").to(row.dtype)
        state = {
            "means": _row_state.write(saved_means, keys, all_means),
            "roots": _row_state.write(saved, keys, all_roots),
            "counts": keyed.write(saved_counts, keys, counts),
        }
        return StageResult(step.jacobian.replace(changed), aux=state)

    def update(self, step: Step) -> Mapping[str, Any]:
        return dict(step.aux)


def root_of_squares(one: Tensor, other: Tensor) -> Tensor:
    """Return √(a² + b²) of each entry, without overflow, and with derivative zero where both are zero."""
    zero = (one == 0) & (other == 0)
    return torch.where(zero, 0.0, torch.hypot(torch.where(zero, 1.0, one), other))


def normalize(means: Tensor, roots: Tensor, rescale: bool) -> Tensor:
    """Return m̂_i / √v̂_i, times √(1/N Σ_j v̂_j) if `rescale`, for m̂ and √v̂ `[tasks, *shape]`; 0 where v̂_i = 0."""
    nonzero = roots > 0
    quotients = torch.where(nonzero, means / torch.where(nonzero, roots, 1.0), 0.0)
    if not rescale:
        return quotients
    largest = roots.amax(0)  # roots are divided by it before they are squared
    relative = roots / torch.where(largest > 0, largest, 1.0)
    return quotients * (largest * safe_sqrt(relative.square().mean(0)))


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=MultiAdam,
        summary="divides each task's gradient by its own second moments, coordinate by coordinate",
        reference="Yao et al. 2023, arXiv 2306.02816",
        traits={"differentiable", "stateful", "scale_equivariant", "per_tensor"},
        needs={"jacobian"},
    )
