"""Linear regressions through one shared hidden unit, where no weighted sum of the losses reaches the balanced point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor, nn

from gradhomog import ProblemRun, ProblemSpec, hookimpl
from gradhomog_data._seeding import generator
from gradhomog_data.problems._held_out import HeldOutProblem, divide, specification

INPUTS = 8

COUNTS = (512, 512, 2048)
"""Examples for training, validation and test."""

NORMS, COSINE, NOISE = (1.0, 1.2, 1.5), -0.2, 0.3
"""Norms of the three coefficient vectors, the cosine of each pair, and the standard deviation of the noise."""

DIRECTIONS = 20_000
"""Directions of the hidden unit among which the balanced point is searched."""


class SharedUnit(HeldOutProblem):
    """Targets y_t = b_t · x + noise of three tasks are predicted by a_t (w · x), with one hidden unit w and no bias.

    The inputs are standard normal, so that the best a_t for w leaves the share 1 − cos²(w, b_t) of the variance of a
    task: its normalized excess loss. The unit cannot serve all tasks. As the cosines of the b_t are negative, the
    minimizer of a weighted sum of the losses fits some tasks and gives up another: its largest normalized excess loss
    is 0.95 for equal weights and at least 0.82 for all weights. At the balanced point, where it is smallest, it is
    0.65; this point minimizes no weighted sum (Hu et al. 2023, arXiv 2308.13985).

    Every step uses all examples. The score is the largest normalized excess loss on new inputs, the mean of
    (a_t w · x − b_t · x)² over that of (b_t · x)². The notes have its value at the balanced point.

    Args:
        seed: of the coefficients and examples.
    """

    state_selection = "last"

    def __init__(self, run: ProblemRun, *, seed: Annotated[int, Ge(0)] = 0) -> None:
        random = generator(seed)
        basis = np.linalg.qr(random.standard_normal((INPUTS, len(NORMS))))[0]
        cosines = np.where(np.eye(len(NORMS), dtype=bool), 1.0, COSINE)
        self.coefficients = basis @ np.linalg.cholesky(cosines).T * NORMS
        x = random.standard_normal((sum(COUNTS), INPUTS))
        y = x @ self.coefficients
        y[: COUNTS[0]] += NOISE * random.standard_normal((COUNTS[0], len(NORMS)))
        super().__init__(
            run, [f"task {number}" for number in range(len(NORMS))],
            divide(COUNTS, x.astype(np.float32), y.astype(np.float32)), OneUnit,
            f"The score of the balanced point is {balanced(self.coefficients, random):.3f}.",
        )  # fmt: skip

    def losses(self, index: int) -> dict[str, Tensor]:
        x, y = self.splits["train"]
        return dict(zip(self.tasks, (self.network(x) - y).square().mean(0).unbind(), strict=True))

    def scores(self, *split: Tensor) -> Mapping[str, float]:
        x, y = split
        excess = (self.network(x) - y).square().mean(0) / y.square().mean(0)
        return {"largest excess": float(excess.max())}


class OneUnit(nn.Module):
    """The outputs a_t (w · x); all parameters are drawn from a standard normal distribution."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = nn.Parameter(torch.randn(INPUTS, 1))
        self.outputs = nn.Parameter(torch.randn(1, len(NORMS)))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.unit @ self.outputs


def balanced(coefficients: NDArray[np.float64], random: np.random.Generator) -> float:
    """Return the smallest maximum over the tasks of 1 − cos²(w, b_t), of random directions w in the span of the b_t.

    20,000 directions give the minimum to 0.01.
    """
    w = coefficients @ random.standard_normal((coefficients.shape[1], DIRECTIONS))
    cosines = coefficients.T @ w / np.linalg.norm(w, axis=0) / np.linalg.norm(coefficients, axis=0)[:, None]
    return float((1 - np.square(cosines)).max(0).min())


@hookimpl
def gradhomog_problem() -> ProblemSpec:
    return specification(
        SharedUnit,
        "three linear regressions through one shared unit, where no weighted sum reaches the balanced point",
        "Hu et al. 2023, arXiv:2308.13985",
        width=0, steps=600, outer_lr=0.03,
    )  # fmt: skip
