"""Krum: take the gradient, or the few gradients, that lie nearest to their neighbours."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, OptionError, hookimpl

# Scores within this share of each other are equal: those of float32 rows are off by 1e-7.
TIE = 1e-6


class Krum(Homogenizer):
    """The step is the row with the lowest score, or the mean of the few lowest (multi-Krum); the others have no say.

    score_i = Σ_j ‖g_i − g_j‖² over the N − f − 2 rows j ≠ i nearest to g_i
    d = 1/m Σ_i g_i over the m rows with the lowest scores  (in both scales: N identical rows give that row)

    Args:
        n_byzantine: f, how many rows may be anything: gradients of broken or mislabelled tasks. Needs N ≥ f + 3; the
            proof of resilience asks for N > 2f + 2.
        n_selected: m ≥ 1, at most N.
        squared: sum squared distances, as the paper does; false sums distances.
        scale: accepted for uniformity.

    Ties: rows with equal scores share what is left of the m places, so that the tasks' order does not matter. With one
    neighbour the two rows that are nearest to each other always tie. Rows within a thousandth of their length are
    equal: float32 rows cannot tell them apart by their inner products. With `n_byzantine=0` one row is taken as it is,
    and of two the mean. A zero row is a row like others, and may be the one that is taken.

    Differentiable in the rows, as long as the same ones are taken: the choice is a constant. State: none. Cost: two
    sorts of N×N numbers; the distances are those of the Gramian.

    Source: Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
    arXiv 1703.02757.

    Deviations: (1) ties, which the paper gives to the least index and TorchJD to whatever its `topk` finds; (2) TorchJD
    sums distances that are not squared, and has no default for `n_byzantine`; with 0 it refuses batches of one or two.

    >>> import torch, gradhomog
    >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.5], [1.0, 0.2], [-9.0, 3.0]])
    >>> gradhomog.pipeline("krum(n_byzantine=1, n_selected=2)").combine(rows)
    tensor([1.0000, 0.1000])
    """

    def __init__(
        self,
        n_byzantine: int = 0,
        n_selected: int = 1,
        squared: bool = True,
        scale: Literal["mean", "paper"] = "mean",
    ) -> None:
        if n_byzantine < 0:
            raise OptionError(f"krum: `n_byzantine` must not be negative; got {n_byzantine!r}.")
        if n_selected < 1:
            raise OptionError(f"krum: `n_selected` must be at least 1; got {n_selected!r}.")
        self.n_byzantine, self.n_selected, self.squared, self.scale = n_byzantine, n_selected, squared, scale

    def mix(self, evidence: Evidence) -> Tensor:
        tasks = evidence.tasks
        if self.n_byzantine and tasks < self.n_byzantine + 3:
            raise OptionError(
                f"krum: `n_byzantine` must be at most {max(tasks - 3, 0)} for {tasks} tasks, so that a row has "
                f"neighbours to be judged by; got {self.n_byzantine}."
            )
        if tasks < self.n_selected:
            raise OptionError(
                f"krum: `n_selected` must be at most the number of tasks, {tasks}; got {self.n_selected}."
            )
        neighbours = min(max(tasks - self.n_byzantine - 2, 1), tasks - 1)
        return tasks * chosen_shares(evidence.gramian(), neighbours, self.n_selected, self.squared)


def chosen_shares(gramian: Tensor, neighbours: int, selected: int, squared: bool = True) -> Tensor:
    """The share of each row in the step, float64 `[tasks]`, summing to one; a constant, without a graph."""
    gramian = gramian.detach()
    squares = gramian.diagonal()
    sums = squares[:, None] + squares
    distances = sums - 2 * gramian
    # What is left of two equal rows is rounding, and would decide between them.
    distances = torch.where(distances > TIE * sums, distances, 0.0)
    distances = distances if squared else distances.sqrt()
    distances = distances + torch.diag(torch.full_like(squares, torch.inf))  # nobody is his own neighbour
    scores = distances.sort(dim=1).values[:, :neighbours].sum(dim=1)
    last = scores.sort().values[selected - 1]
    better, enough = scores < last * (1 - TIE), scores <= last * (1 + TIE)
    equal = enough & ~better
    return (better + equal * (selected - better.sum()) / equal.sum()) / selected


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=Krum,
        summary="the gradients that lie nearest to their neighbours; outliers have no say",
        reference="Blanchard et al. 2017, arXiv 1703.02757",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"gramian"},
    )
