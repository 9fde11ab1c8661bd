"""Krum: select the gradient, or the few gradients, nearest to their neighbours."""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, OptionError, Step, hookimpl

# Scores with a smaller relative difference are equal: the error for float32 rows is about 1e-7.
TIE = 1e-6


class Krum(Homogenizer):
    """The row with the lowest score, or the mean of the rows with the lowest scores (multi-Krum).

        score_i = Σ_j ‖g_i − g_j‖² over the N − f − 2 rows j ≠ i nearest to g_i
        d = 1/m Σ_i g_i over the m rows with the lowest scores

    Args:
        n_byzantine: f, the number of rows that may be arbitrary: gradients of broken or mislabelled tasks. Requires N ≥
            f + 3; the proof of resilience requires N > 2f + 2.
        n_selected: m ≥ 1, at most N.
        squared: sum squared distances, as in the paper; False sums distances.

    Use it when single tasks may have broken data or wrong labels, so that their gradients are far from all others. It
    is harmful where tasks rightly differ: rows that are not selected have no influence, and a task whose gradient
    always differs from the others is never trained. The selected row may conflict with others.

    Ties: among rows with equal scores, the rows with the smallest sum of distances to all rows are selected. If these
    sums are equal too, the tied rows share the remaining weight equally, so that the order of the tasks does not
    matter. With one neighbour, the two rows that are nearest to each other always have equal scores, and the one nearer
    to the others is selected; of two rows, d is the mean. Rows within a thousandth of their length are equal: inner
    products of float32 rows do not distinguish them. A zero row is treated as any other row and may be selected.

    Differentiable in the rows where the same rows are selected; the selection is a constant.

    State: none.

    Cost: two sorts of N×N numbers; the distances are computed from the Gramian.

    Source: Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", arXiv
    1703.02757.

    Deviations: (1) Ties; the paper selects the row with the smallest index, TorchJD the first one that its `topk`
    returns. (2) TorchJD sums distances that are not squared and has no default for `n_byzantine`; with 0 it raises for
    batches of one or two tasks.

    >>> import torch, gradhomog
    >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.5], [1.0, 0.2], [-9.0, 3.0]])
    >>> gradhomog.pipeline("krum(n_byzantine=1, n_selected=2)").combine(rows)
    tensor([1.0000, 0.1000])
    """

    def __init__(
        self, n_byzantine: Annotated[int, Ge(0)] = 0, n_selected: Annotated[int, Ge(1)] = 1, squared: bool = True
    ) -> None:
        self.n_byzantine, self.n_selected, self.squared = n_byzantine, n_selected, squared

    def mix(self, step: Step) -> Tensor:
        tasks = step.tasks
        if self.n_byzantine and tasks < self.n_byzantine + 3:
            raise OptionError(
                f"`n_byzantine` must be at most {max(tasks - 3, 0)} for {tasks} tasks, so that each row has a "
                f"neighbour; got {self.n_byzantine}."
            )
        if tasks < self.n_selected:
            raise OptionError(f"`n_selected` must be at most the number of tasks, {tasks}; got {self.n_selected}.")
        neighbours = min(max(tasks - self.n_byzantine - 2, 1), tasks - 1)
        return tasks * selection_weights(step.gramian(), neighbours, self.n_selected, self.squared)


def selection_weights(gramian: Tensor, neighbours: int, selected: int, squared: bool = True) -> Tensor:
    """Return the share of each row in the step, float64 `[tasks]`, with sum one and without a graph."""
    gramian = gramian.detach()
    squares = gramian.diagonal()
    sums = squares[:, None] + squares
    distances = sums - 2 * gramian
    # The difference of two equal rows is rounding, which would decide ties.
    distances = torch.where(distances > TIE * sums, distances, 0.0)
    distances = distances if squared else distances.sqrt()
    to_others = distances + torch.diag(torch.full_like(squares, torch.inf))
    nearest = to_others.sort(dim=1).values
    better, equal = _selection_masks(nearest[:, :neighbours].sum(dim=1), selected)
    left = selected - better.sum()
    totals = torch.where(equal, nearest[:, :-1].sum(dim=1), torch.inf)
    best, still_equal = _selection_masks(totals, left)
    return (better + best + still_equal * (left - best.sum()) / still_equal.sum()) / selected


def _selection_masks(scores: Tensor, places: Tensor | int) -> tuple[Tensor, Tensor]:
    """Return masks of the rows below the `places`-th lowest score, and of those that tie with it."""
    last = scores.sort().values.gather(0, torch.as_tensor(places)[None] - 1)
    better, enough = scores < last * (1 - TIE), scores <= last * (1 + TIE)
    return better, enough & ~better


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=Krum,
        summary="selects the gradients nearest to their neighbours and ignores outliers",
        reference="Blanchard et al. 2017, arXiv 1703.02757",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"gramian"},
    )
