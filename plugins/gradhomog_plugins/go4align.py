"""GO4Align: tasks are grouped by an indicator of their risk, and each group has one weight."""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, hookimpl, keyed
from gradhomog_plugins import _losses


class GO4Align(Homogenizer):
    """Weights from the inverse losses and the accumulated losses of the tasks, averaged in groups of similar weights.

        p_i ← p_i e^{−η L_i} / Σ_j p_j e^{−η L_j},  p_i = 1/N at first
        γ_i = p_i Σ_j L_j / L_i;  G_1, …, G_K: the groups of k-means of γ;  γ̄_i: the mean of γ in the group of i
        d = 1/N Σ_i ω_i g_i,  ω_i = γ̄_i / mean_j γ̄_j;  paper's scale: d = Σ_i γ̄_i g_i

    Args:
        groups: K. With 1 all weights are equal; with N or more each task is a group.
        lr: η, in units of 1/loss. With 0, γ is proportional to 1/L_i.

    Use it when many tasks have losses of a few different magnitudes, N backward passes are too expensive, and the
    weights of `scale_invariant` vary too much from step to step: tasks of one group have the same weight. It is of
    little use for two or three tasks, and harmful where a loss approaches zero, because its group then takes nearly all
    weight. It does not resolve conflicts. A task changes its group from one step to the next, and its weight then
    jumps.

    Acts on rows: shared parameters receive the gradient of the weighted losses; each head of a multi-task network
    receives the unweighted gradient of its loss. Losses must be positive. For numbers on a line, the groups of k-means
    are intervals; the best of all such partitions is computed. A new key has p = 1/N, the mean of the others.

    Differentiable in rows and losses, except where a task changes its group.

    State: log N p, by key.

    Cost: O(N² K).

    Source: Shen et al. 2024, "GO4Align: Group Optimization for Multi-Task Alignment", NeurIPS, arXiv 2404.06486; the
    formula is that of the authors' code, methods/cluster_methods.py.

    Deviations: (1) The mean of the weights is one by default. (2) The best partition; the authors' code calls k-means
    from a random start, a function whose import is commented out, so that it raises an error for K ≥ 2. (3) K = 2. The
    default of the authors' script is 1, which is the sum of the losses with one common factor. (4) p is stored as a
    logarithm. Theirs, in float32, becomes zero and remains so after a million steps in which a loss exceeds the others
    by one.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("go4align(groups=2)")
    >>> pipe.homogenize(torch.eye(3), torch.tensor([1.0, 1.1, 10.0])).weights
    tensor([1.4254, 1.4254, 0.1492], dtype=torch.float64)
    """

    state_names = {"log_shares": dict[str, float]}

    def __init__(self, groups: Annotated[int, Ge(1)] = 2, lr: Annotated[float, Ge(0)] = 1e-4) -> None:
        self.groups, self.lr = groups, lr
        self.log_shares: dict[str, float] = {}  # log N p

    def mix(self, step: Step) -> Tensor:
        weights, _ = self._weights(step)
        return weights / weights.mean()

    def paper_scale(self, step: Step) -> Tensor:
        weights, log_largest = self._weights(step)
        log_weights = weights.detach().log() + log_largest
        _losses.require_at_most(log_weights.exp(), step, "p ΣL / L, averaged by group,")
        return weights.sum() * log_largest.exp()

    def update(self, step: Step) -> dict[str, Any]:
        return {"log_shares": keyed.write(self.log_shares, step.names, self._new_log_shares(step))}

    def _weights(self, step: Step) -> tuple[Tensor, Tensor]:
        """Return γ̄ over the largest γ, `[tasks]`, and the logarithm of the largest γ, as a constant."""
        indicators = self._log_indicators(step)
        largest = indicators.max().detach()
        weights = (indicators - largest).exp()
        return group_means(weights, line_groups(weights.tolist(), self.groups)), largest

    def _new_log_shares(self, step: Step) -> Tensor:
        """Return log N p after this step's losses, `[tasks]`."""
        keys = step.names
        shares = keyed.read(self.log_shares, keys, 0.0) - self.lr * _losses.mean_by_key(keys, step.losses)
        return torch.log_softmax(shares, dim=0) + math.log(step.tasks)

    def _log_indicators(self, step: Step) -> Tensor:
        """Return log γ, `[tasks]`."""
        losses, advice = _losses.positive(step, "because tasks are weighted by 1/L"), "Use a smaller `lr`."
        _losses.require_valid((self.lr * losses).isfinite(), step, "`lr` times a loss must be finite", advice)
        log_shares = self._new_log_shares(step) - math.log(step.tasks)
        return log_shares + torch.logsumexp(losses.log(), dim=0) - losses.log()


def line_groups(values: Sequence[float], groups: int) -> list[list[int]]:
    """Return the partition of numbers into at most `groups` groups with the least sum of squared deviations.

    Dynamic programming over the sorted numbers: `best[j]` is the cost and the first indices of the groups of the j
    smallest numbers (Wang and Song 2011, "Ckmeans.1d.dp").

    >>> line_groups([5.0, 1.0, 5.2, 1.1], groups=2)
    [[1, 3], [0, 2]]
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    costs = [squared_deviations([values[index] for index in order[start:]]) for start in range(len(order))]
    best: list[tuple[float, list[int]]] = [(0.0, []), *((cost, [0]) for cost in costs[0])]
    for _ in range(1, min(groups, len(order))):
        best = best[:1] + [
            min((best[start][0] + costs[start][stop - start - 1], [*best[start][1], start]) for start in range(stop))
            for stop in range(1, len(best))
        ]
    starts = best[-1][1]
    return [order[start:stop] for start, stop in zip(starts, [*starts[1:], len(order)], strict=True)]


def squared_deviations(numbers: Sequence[float]) -> list[float]:
    """Return the sum of squared deviations from their mean of the first 1, 2, … numbers.

    By Welford's recursion, which is exactly zero for equal numbers.
    """
    sums, mean, total = [], 0.0, 0.0
    for count, number in enumerate(numbers, start=1):
        deviation = number - mean
        mean += deviation / count
        total += deviation * (number - mean)
        sums.append(total)
    return sums


def group_means(values: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """Return the mean of each value's group, `[tasks]`."""
    means = torch.empty_like(values)
    for group in groups:
        means[list(group)] = values[list(group)].mean()
    return means


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=GO4Align,
        summary="groups tasks by inverse and accumulated losses, with one weight per group",
        reference="Shen et al. 2024, arXiv 2404.06486",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"losses"},
    )
