"""Dynamic weight average (DWA): a task whose loss falls slowly gets more weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, OptionError, hookimpl
from gradhomog_plugins import _losses

# The rate of a loss that was zero and no longer is: so large that its task takes all weight, and still finite.
LARGEST_RATE = 1e6


class DWA(Homogenizer):
    """Weights from the rates at which the losses fell from the last epoch but one to the last.

    r_i = L̄_i(t−1) / L̄_i(t−2),  λ = N softmax(r/T),  L̄_i(t): the mean of L_i over epoch t
    d = 1/N Σ_i λ_i g_i  (`scale="mean"`)  or  Σ_i λ_i g_i  (`scale="paper"`)

    Args:
        temperature: T > 0; the larger, the more equal the weights.
        period: ≥ 1, steps that make an epoch: for the paper's epochs the number of batches in the training set. Where
            tasks are drawn without end, as in meta-learning, so many that the mean of their losses is not mere noise:
            with T = 2 the weights move by about half of what the rates differ, so noise of 10 % in L̄ is 7 % in them.
        key: state by `"slot"` (place in the batch) or by `"domain"`, which is right where a slot's domain changes from
            batch to batch, as in the strong setting.
        scale: see above.

    Acts on rows: the shared parameters see the combined loss, the heads of a multi-task network their own losses.

    Differentiable in the rows, the weights being constants. State, by key: sum and number of this epoch's losses and
    the means of the last two; and the steps of this epoch. In the first two epochs, and for a task that was not seen in
    two, r = 1: as if its loss stood still. Losses must not be negative, a ratio says nothing of them; a task whose loss
    was zero on average and is no longer takes all weight. Cost: O(N).

    Source: Liu et al. 2019, "End-to-End Multi-Task Learning with Attention", arXiv 1803.10704, equation 7.

    Deviations: (1) an epoch is a number of steps; (2) the mean of the weighted rows by default; (3) reference code:
    nash-mtl and SamsungLabs/MTL slide a window of 25 steps, begin with a history of ones and take the mean of the
    weighted losses, N times less than the paper; TorchJD 0.18 leaves its history out of its state.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("dwa(period=1)")
    >>> for losses in ([1.0, 1.0], [0.9, 0.3], [0.8, 0.2]):
    ...     result = pipe.homogenize(torch.eye(2), torch.tensor(losses))
    >>> result.weights  # the second loss fell to 0.3 of what it was, the first to 0.9
    tensor([1.1489, 0.8511], dtype=torch.float64)
    """

    carried = ("steps", "sums", "means")

    def __init__(
        self,
        temperature: float = 2.0,
        period: int = 100,
        key: Literal["slot", "domain"] = "slot",
        scale: Literal["mean", "paper"] = "mean",
    ) -> None:
        if not 0 < temperature < math.inf:
            raise OptionError(f"dwa: `temperature` must be positive; got {temperature!r}.")
        if period < 1:
            raise OptionError(f"dwa: `period` must be at least 1; got {period!r}.")
        self.temperature, self.period, self.key, self.scale = temperature, period, key, scale
        self.steps = 0
        self.sums: dict[str, list[float]] = {}  # of this epoch: sum and number
        self.means: dict[str, list[float]] = {}  # of the last two epochs that the key was seen in, the latest last

    def mix(self, evidence: Evidence) -> Tensor:
        rates = [_rate(self.means.get(key, ())) for key in evidence.by(self.key)]
        found = weights(torch.tensor(rates, dtype=torch.float64), self.temperature)
        return found if self.scale == "mean" else evidence.tasks * found

    def update(self, evidence: Evidence) -> None:
        losses = evidence.losses
        _losses.require(losses >= 0, evidence, "dwa: losses must not be negative, it weighs by their ratios")
        for key, loss in zip(evidence.by(self.key), losses.tolist(), strict=True):
            total, count = self.sums.get(key, (0.0, 0.0))
            self.sums[key] = [total + loss, count + 1]
        self.steps += 1
        if self.steps == self.period:
            for key, (total, count) in self.sums.items():
                self.means[key] = [*self.means.get(key, ()), total / count][-2:]
            self.steps, self.sums = 0, {}


def weights(rates: Tensor, temperature: float) -> Tensor:
    """N softmax(r/T), `[tasks]`."""
    return rates.shape[0] * torch.softmax(rates / temperature, dim=0)


def _rate(means: Sequence[float]) -> float:
    if len(means) < 2 or means[0] == means[1]:
        return 1.0
    older, newer = means
    return min(newer / older, LARGEST_RATE) if older > 0 else LARGEST_RATE


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=DWA,
        summary="more weight to tasks whose losses fall slowly from epoch to epoch",
        reference="Liu et al. 2019, arXiv 1803.10704, equation 7",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"losses"},
    )
