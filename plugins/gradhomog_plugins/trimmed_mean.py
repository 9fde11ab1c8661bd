"""The trimmed mean: in each coordinate, the mean of what is left without the largest and the smallest entries."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, OptionError, Rows, hookimpl

# Columns of a block, which fits the cache while its rows are compared. A quarter takes 1.6 times as long (measured).
COLUMNS = 2**15


class TrimmedMean(Homogenizer):
    """Each coordinate of the direction is the mean of the tasks' entries but for the k largest and the k smallest.

    d_p = 1/(N − 2k) Σ_{i=k+1}^{N−k} g_(i)p,  g_(1)p ≤ … ≤ g_(N)p the tasks' entries in coordinate p, sorted

    No task can pull a coordinate further than the others reach, whatever its gradient is: for tasks with broken data,
    not for tasks that rightly disagree.

    Args:
        trim: a share β in [0, 0.5), for which k = ⌊βN⌋; or a whole number k ≥ 0, for which N > 2k is needed. The paper
            asks for a β at least as large as the share of bad tasks; with a quarter, the mean of the middle half, four
            tasks are the first of which any are left out. Fewer are averaged.
        scale: accepted for uniformity; N identical rows give that row in both.

    Differentiable in the rows: entries left out have derivative zero, and where entries are equal each has a share. One
    task is left as it is; zero, duplicate and opposite rows need no exception. State: none. N identical rows give that
    row: mean and paper are one scale.

    The direction is no mixture of the rows: all rows become it. Cost: about ¼ N log² N comparisons of rows, in blocks
    that fit the cache, and the memory of the direction. Measured at 16 tasks and 10⁶ float32 parameters, 1/18 of the
    time of TorchJD's TrimmedMean for k = 1, and 1/12 for k = 4.

    Source: Yin et al. 2018, "Byzantine-Robust Distributed Learning", arXiv 1803.01498, definition 2.

    Deviations: none in what is computed. TorchJD's `trim_number` is k; SciPy's `trim_mean` takes β. TorchJD's takes NaN
    for the largest number and trims it away; here a task with NaN raises, or is dropped before.

    >>> import torch, gradhomog
    >>> jacobian = torch.tensor([[1.0, 2.0], [2.0, -50.0], [3.0, 4.0], [900.0, 0.0]])
    >>> gradhomog.pipeline("trimmed_mean").combine(jacobian)
    tensor([2.5000, 1.0000])
    """

    def __init__(self, trim: int | float = 0.25, scale: Literal["mean", "paper"] = "mean") -> None:
        whole = isinstance(trim, int)
        if not (trim >= 0 if whole else 0 <= trim < 0.5):
            raise OptionError(
                f"trimmed_mean: `trim` must be a whole number of tasks, at least 0, or a share of them in [0, 0.5); "
                f"got {trim!r}."
            )
        self.trim, self.scale = trim, scale

    def rows(self, jacobian: Rows) -> Rows:
        if isinstance(jacobian, Tensor):
            return self._trimmed(jacobian)
        return {name: self._trimmed(value) for name, value in jacobian.items()}

    def count(self, tasks: int) -> int:
        """k."""
        count = int(self.trim if isinstance(self.trim, int) else self.trim * tasks)
        if 2 * count >= tasks:
            raise OptionError(
                f"trimmed_mean: `trim` must leave a task over: {count} are taken away at either end; got {tasks} in "
                "all. Give a smaller number, or a share such as 0.25."
            )
        return count

    def _trimmed(self, value: Tensor) -> Tensor:
        tasks, matrix = value.shape[0], value.reshape(value.shape[0], -1)
        count = self.count(tasks)
        network = _known_comparisons(tasks, count)
        if matrix.requires_grad:  # all that a block computes is kept anyway
            vector = mean_of_middle(matrix, count, network)
        else:
            vector = matrix.new_empty(matrix.shape[1])
            for start in range(0, matrix.shape[1], COLUMNS):
                vector[start : start + COLUMNS] = mean_of_middle(matrix[:, start : start + COLUMNS], count, network)
        return vector.reshape(value.shape[1:]).expand_as(value)


Network = Sequence[tuple[int, int, bool, bool]]
"""Pairs of places to be put in order, one after the other, and whether the smaller, the larger is needed."""


def mean_of_middle(rows: Tensor, trim: int, network: Network | None = None) -> Tensor:
    """Column by column the mean of `[tasks, params]` without the `trim` largest and smallest: `[params]`.

    Whole rows are compared with each other by a network; `torch.sort` would sort column by column.

    >>> mean_of_middle(torch.tensor([[1.0], [9.0], [2.0], [3.0]]), trim=1)
    tensor([2.5000])
    """
    wide = list(rows.to(torch.promote_types(rows.dtype, torch.float32)))
    for low, high, smaller, larger in network or comparisons(len(wide), trim):
        one, other = wide[low], wide[high]
        if smaller:
            wide[low] = torch.minimum(one, other)
        if larger:
            wide[high] = torch.maximum(one, other)
    middle = wide[trim : len(wide) - trim]
    total: Tensor = functools.reduce(torch.add, middle)
    return (total / len(middle)).to(rows.dtype)


def comparisons(tasks: int, trim: int) -> Network:
    """Of a network that sorts, what decides who is in the middle: their order there does not matter for the mean."""
    needed = ["no"] * trim + ["in the sum"] * (tasks - 2 * trim) + ["no"] * trim
    found = []
    for low, high in reversed(list(_sorting_network(tasks))):
        if needed[low] == needed[high] != "compared":
            continue  # nobody asks which of the two is which
        found.append((low, high, needed[low] != "no", needed[high] != "no"))
        needed[low] = needed[high] = "compared"
    return tuple(reversed(found))


_known_comparisons = functools.cache(comparisons)


def _sorting_network(size: int) -> Iterator[tuple[int, int]]:
    """Batcher's odd-even merge sort (1968, doi 10.1145/1468075.1468121): pairs of places, the smaller to the first."""
    run = 1
    while run < size:
        step = run
        while step >= 1:
            for start in range(step % run, size - step, 2 * step):
                for low in range(start, min(start + step, size - step)):
                    if low // (2 * run) == (low + step) // (2 * run):
                        yield low, low + step
            step //= 2
        run *= 2


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=TrimmedMean,
        summary="averages in each coordinate what is left without the largest and the smallest entries",
        reference="Yin et al. 2018, arXiv 1803.01498",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant"},
    )
