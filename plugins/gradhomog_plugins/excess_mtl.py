"""ExcessMTL: more weight for tasks with large excess risks, which are estimated from their gradients."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from annotated_types import Gt
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, hookimpl, keyed
from gradhomog_plugins import _row_state
from gradhomog_plugins._row_state import RowState

# Smallest weight relative to the mean: a product of factors that has become zero would stay zero.
SMALLEST_WEIGHT = 1e-3

# √S before the first step, instead of zero: 0²/√0 is then zero, and other entries are unchanged.
TINY = torch.finfo(torch.float32).tiny


class ExcessMTL(Homogenizer):
    """Weights that grow exponentially with the tasks' excess risks, estimated by gradients in the metric of Adagrad.

        S_i ← S_i + g_i²,  e_i = Σ_p g_ip² / √S_ip,  ē_i = e_i / e_i(0)
        w_i ← w_i exp(η ē_i),  then w ← N w / Σ_j w_j;  the next step uses these weights
        d = 1/N Σ_i w_i g_i

    Args:
        lr: η > 0, rate of the weights.

    Use it when the labels of some tasks are noisy: their losses stay high for that reason, and methods that give weight
    to large losses would favour them. The estimate of the excess risk does not include this noise. It needs the memory
    of a copy of the rows, and does not resolve conflicts.

    e_i is twice the second-order estimate of L_i − min L_i, with √S_i as the curvature. e_i(0) is that of the first
    step, in which ē_i = 1 for all tasks and no weight changes. A common factor of the rows of all steps changes no
    weight, nor does a factor of the rows of one task. A task whose rows have all been zero has ē = 1, as in a first
    step. If a batch has several tasks of one key, they share its weight, and the means of their √S and of their e
    update it.

    Differentiable in the rows, with the weights as constants.

    State: √S_i for every key, in float32 or float64, N × params numbers in all; and e_i(0) and w_i. Rows with other
    names or shapes restart √S and e_i(0), and keep the weights.

    Cost: the direction, and about four reads and three writes of N × params numbers.

    Source: He et al. 2024, "Robust Multi-Task Learning with Excess Risks", arXiv 2402.02009, equations 6, 7 and 9. The
    default of `lr` is that of the authors' code.

    Deviations: (1) No epsilon; the authors' code adds 1e-7 to S, which changes the metric for small rows. (2) w is
    updated after the direction of the step is computed; the authors' code updates it before. (3) The mean of the
    weighted rows; the authors' code sums, so its directions are N times as long. (4) In a batch that has only some
    keys, weights are divided by their mean, and their ratio to the weights of other keys is kept. (5) No weight falls
    below 1e-3 of the mean; otherwise a task whose first gradient happened to be small would suppress the others
    permanently. (6) The default of `lr`; TorchJD has 1.0, and updates w in the first step by e itself, which for 10⁶
    parameters is of the order of 10⁶: one task permanently gets all weight.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("excess_mtl(lr=1)")
    >>> rows = torch.eye(2)
    >>> _ = pipe.combine(rows), pipe.combine(torch.tensor([[0.1, 0.0], [0.0, 1.0]]))  # the first task converges
    >>> pipe.combine(rows)
    tensor([0.3324, 0.6676])
    """

    weights_absent = True
    state_names = {"roots": RowState, "first": dict[str, float], "weights": dict[str, float]}

    def __init__(self, lr: Annotated[float, Gt(0)] = 0.01) -> None:
        self.lr = lr
        self.roots: RowState = {}  # √S, because squares can overflow float32 where rows do not
        self.first: dict[str, float] = {}
        self.weights: dict[str, float] = {}

    def mix(self, step: Step) -> Tensor:
        weights = keyed.read(self.weights, [*step.names, *step.absent_names], 1.0)
        return (weights / weights.mean())[: step.tasks]

    def update(self, step: Step) -> Mapping[str, Any]:
        keys = step.names
        kept, first = _row_state.fitting(step, self.roots, self.first)
        roots, risks = {}, []
        for name, row in step.jacobian.by_parameter():
            before = _row_state.read(kept.get(name, {}), keys, row, initial=TINY)
            roots[name] = torch.hypot(before, row.to(before.dtype))
            risks.append(excess_risks(row, roots[name]))
        excess = keyed.mean(keys, torch.stack(risks).sum(0).cpu())
        first = {**{key: float(value) for key, value in excess.items() if value > 0}, **first}
        relative = torch.stack([excess[key] / first[key] if key in first else torch.ones(()) for key in keys])
        weights = keyed.read(self.weights, keys, 1.0)
        # The sum over this batch's keys is preserved, and with it their ratio to the weights of other keys.
        shares = len(weights) * torch.softmax(weights.log() + self.lr * relative.to(weights), dim=0)
        bounded = shares.clamp_min(SMALLEST_WEIGHT)
        new = bounded / bounded.mean() * weights.mean()
        return {
            "roots": _row_state.write(kept, keys, roots),
            "first": first,
            "weights": keyed.write(self.weights, keys, new),
        }


def excess_risks(rows: Tensor, roots: Tensor) -> Tensor:
    """Return Σ_p g_ip² / √S_ip over a block `[tasks, *shape]`, float64 `[tasks]`."""
    totals = []
    for row, root in zip(rows, roots, strict=True):  # one task at a time, which fits the cache
        wide = row.to(root.dtype).reshape(-1)
        totals.append(torch.dot(wide, wide / root.reshape(-1)))  # not g²/√S, which can overflow float32
    return torch.stack(totals).double()


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=ExcessMTL,
        summary="gives more weight to tasks with large estimated excess risks",
        reference="He et al. 2024, arXiv 2402.02009",
        traits={"differentiable", "stateful", "scale_equivariant"},
        needs={"jacobian"},
    )
