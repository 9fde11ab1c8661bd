"""MetaBalance: scale the gradients of auxiliary tasks to the norm of the primary task's gradient, tensor by tensor."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, hookimpl, keyed, safe_sqrt
from gradhomog_plugins import _row_state
from gradhomog_plugins._columns import wide_dtype
from gradhomog_plugins._primary import Primary, primary_tasks

Strategy = Literal["both", "reduce", "enlarge"]


class MetaBalance(Homogenizer):
    """Scale each auxiliary row, in each tensor of parameters, towards the primary row's norm averaged over steps.

        m_i ← β m_i + (1 − β) ‖g_i‖,  n_i = m_i / (1 − β^t), in each tensor of parameters
        ĝ_i = r (n₀/n_i) g_i + (1 − r) g_i,  n₀ that of the primary task
        d = 1/N Σ_i ĝ_i;  paper's scale: d = Σ_i ĝ_i

    Args:
        primary: the slot or the domain of the primary task, the target of transfer learning. It must be in the first
            batch.
        relax: r in [0, 1], the share of the scaled row; 0 is the plain mean, 1 gives all rows the primary row's norm.
        beta: β in [0, 1), the weight of the previous average; 0 uses the norms of this step.
        strategy: `"reduce"` scales only rows with n_i > n₀ (the paper's strategy A), `"enlarge"` only rows with n_i <
            n₀ (B), `"both"` all rows (C).

    Use it when one task counts and the others are auxiliary, as clicks beside purchases in a recommender, and the ratio
    of their gradient norms differs between the layers or changes during training. It does not change cosines within a
    tensor, so it does not resolve conflicts. It is harmful where an auxiliary gradient is short because its task has
    converged: `"both"` and `"enlarge"` scale its noise up.

    A task's row in a tensor where it has been zero so far is unchanged. In a tensor where the primary row has been zero
    so far, n₀ = 0, and auxiliary rows are multiplied by 1 − r. In a step without the primary task, n₀ is its last
    average. With several primary tasks, of one domain, n₀ is the mean of their averages, and their rows are scaled as
    well.

    Differentiable in the rows, with the averages before the step as constants.

    State: one number for each key and tensor, and n₀ for each tensor. Rows with other names restart it.

    Cost: the norms of the rows by tensor, and a scaled copy of the rows.

    Source: He et al. 2022, "MetaBalance: Improving Multi-Task Recommendations via Adapting Gradient Magnitudes of
    Auxiliary Tasks", arXiv 2203.06801, algorithm 1; the defaults are those of the authors' code.

    Deviations: (1) The mean by default; the paper sums. (2) The average of a new key is divided by 1 − β^t; in the
    authors' code it starts at zero. The ratio n₀/n_i is the same if all tasks are in every batch. (3) No epsilon;
    torch-rechub adds 1e-5 to n_i, which reduces rows with a norm of that size, and the authors' code divides 0 by 0
    where an auxiliary row is zero. (4) Every tensor is scaled; both codes leave the loop over the tensors at the first
    tensor that a loss does not depend on. (5) The codes have strategy C only.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("metabalance(relax=1)").combine(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
    tensor([1.5000, 1.5000])
    """

    state_names = {"sums": dict[str, dict[str, float]], "weight_sums": dict[str, float], "targets": dict[str, float]}

    def __init__(
        self,
        primary: Primary = 0,
        relax: Annotated[float, Interval(ge=0, le=1)] = 0.7,
        beta: Annotated[float, Interval(ge=0, lt=1)] = 0.9,
        strategy: Strategy = "both",
    ) -> None:
        self.primary, self.relax, self.beta, self.strategy = primary, relax, beta, strategy
        self.sums: dict[str, dict[str, float]] = {}  # m by tensor and key
        self.weight_sums: dict[str, float] = {}
        self.targets: dict[str, float] = {}  # n₀ by tensor

    def rows(self, step: Step) -> StageResult:
        keys, jacobian = step.names, step.jacobian
        fits = self.sums.keys() == set(jacobian.names)
        required = "" if fits else "a task in the first batch (rows with other names restart the averages)"
        primary = primary_tasks(self.primary, step, required)
        saved, saved_weight_sums = (self.sums, self.weight_sums) if fits else ({}, {})
        weight_sums = self.beta * keyed.read(saved_weight_sums, keys, 0.0) + (1 - self.beta)
        scaled, sums, targets = {}, {}, {}
        all_norms = safe_sqrt(jacobian.block_squared_norms)
        for (name, rows), norms in zip(jacobian.by_parameter(), all_norms, strict=True):
            new = self.beta * keyed.read(saved.get(name, {}), keys, 0.0) + (1 - self.beta) * norms
            if bool(primary.any()):
                target = (new / weight_sums)[primary].mean()
            else:
                target = torch.tensor(self.targets[name], dtype=torch.float64)
            sums[name], targets[name] = keyed.write(saved.get(name, {}), keys, new), float(target.detach())
            scaled[name] = scale_norms(rows, new / weight_sums, target, self.relax, self.strategy)
        state = {"sums": sums, "weight_sums": keyed.write(saved_weight_sums, keys, weight_sums), "targets": targets}
        return StageResult(jacobian.replace(scaled), aux=state)

    def paper_scale(self, step: Step) -> float:
        return step.tasks

    def update(self, step: Step) -> Mapping[str, Any]:
        return dict(step.aux)


def scale_norms(rows: Tensor, norms: Tensor, target: Tensor, relax: float, strategy: Strategy) -> Tensor:
    """Return the rows of one tensor whose norms `[tasks]` have been moved towards the target."""
    wide = rows.to(wide_dtype(rows))
    selected, after = changed_norms(norms, target, relax, strategy)
    # Not times after/before, which overflows for a task whose row has been zero for many steps.
    limits = torch.finfo(wide.dtype)
    divisors = torch.where(selected, norms, 1.0).clamp_min(limits.tiny)
    multipliers = torch.where(selected, after, 1.0).clamp_max(limits.max)
    broadcast = _row_state.broadcast_per_task
    return (wide / broadcast(divisors, wide) * broadcast(multipliers, wide)).to(rows.dtype)


def changed_norms(norms: Tensor, target: Tensor, relax: float, strategy: Strategy = "both") -> tuple[Tensor, Tensor]:
    """Return True for the rows that the strategy scales, and r n₀ + (1 − r) n_i, float64 `[tasks]`.

    >>> changed_norms(torch.tensor([1.0, 4.0, 0.5]), torch.tensor(1.0), relax=0.5, strategy="reduce")
    (tensor([False,  True, False]), tensor([1.0000, 2.5000, 0.7500]))
    """
    selected = norms > 0
    if strategy == "reduce":
        selected = norms > target
    elif strategy == "enlarge":
        selected = selected & (norms < target)
    return selected, relax * target + (1 - relax) * norms


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=MetaBalance,
        summary="scales auxiliary gradients towards the norm of the primary task's gradient, tensor by tensor",
        reference="He et al. 2022, arXiv 2203.06801",
        traits={"differentiable", "stateful", "scale_equivariant", "per_tensor"},
        needs={"jacobian"},
    )
