"""Dynamic weight average (DWA): more weight to tasks whose losses fall slowly."""

from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, hookimpl, keyed
from gradhomog_plugins import _losses

# The rate of a loss that rises from zero: so large that its task gets all weight, and still finite.
LARGEST_RATE = 1e6


class DWA(Homogenizer):
    """Weights from the ratios of the mean losses of the last two epochs.

        r_i = L̄_i(t−1) / L̄_i(t−2),  λ = N softmax(r/T),  L̄_i(t): the mean of L_i over epoch t
        d = 1/N Σ_i λ_i g_i;  paper's scale: d = Σ_i λ_i g_i

    Args:
        temperature: T; the larger, the more equal the weights.
        period: steps per epoch; the paper's epoch is the number of batches in the training set. If tasks are sampled
            without end, as in meta-learning, use so many steps that the mean of the losses is not mere noise: with T =
            2 the weights change by about half of the difference of the rates, so noise of 10 % in L̄ changes them by 7
            %.

    Use it when the loss curves of some tasks fall slowly from epoch to epoch while others fall fast, and N backward
    passes are too expensive: it reads losses only. It is of no use where the means of the losses are dominated by
    noise, and it does not resolve conflicts. A task whose loss cannot fall further gets more weight, too.

    Acts on rows: shared parameters receive the gradient of the weighted losses; each head of a multi-task network
    receives the unweighted gradient of its loss. In the first two epochs, and for a task that has occurred in
    fewer than two, r = 1, the rate of a constant loss. Losses must not be negative, because their ratio is then no
    rate. A task whose mean loss rises from zero gets all weight.

    Differentiable in the rows, with the weights as constants.

    State: by key, sum and number of the losses of this epoch, and their means in the last two epochs in which the key
    occurred.

    Cost: O(N).

    Source: Liu et al. 2019, "End-to-End Multi-Task Learning with Attention", arXiv 1803.10704, equation 7.

    Deviations: (1) An epoch is a number of steps. (2) The mean of the weighted rows by default. (3) Reference code:
    nash-mtl and SamsungLabs/MTL use a sliding window of 25 steps and a history that begins with ones, and average the
    weighted losses, which is N times less than in the paper; TorchJD 0.18 omits the history from its state.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("dwa(period=1)")
    >>> for losses in ([1.0, 1.0], [0.9, 0.3], [0.8, 0.2]):
    ...     result = pipe.homogenize(torch.eye(2), torch.tensor(losses))
    >>> result.weights  # the second loss fell to 0.3 of its previous value, the first to 0.9
    tensor([1.1489, 0.8511], dtype=torch.float64)
    """

    state_names = dict.fromkeys(("totals", "counts", "older", "newer"), dict[str, float])

    def __init__(self, temperature: Annotated[float, Gt(0)] = 2.0, period: Annotated[int, Ge(1)] = 100) -> None:
        self.temperature, self.period = temperature, period
        self.totals: dict[str, float] = {}  # of this epoch
        self.counts: dict[str, float] = {}
        self.older: dict[str, float] = {}  # L̄(t−2)
        self.newer: dict[str, float] = {}  # L̄(t−1)

    def mix(self, step: Step) -> Tensor:
        older, newer = (keyed.read(means, step.names, 1.0) for means in (self.older, self.newer))
        rates = torch.where(older == newer, 1.0, (newer / older).clamp(max=LARGEST_RATE))  # r; 1 where both are zero
        return _losses.exponential_weights((rates - rates.max()) / self.temperature)

    def paper_scale(self, step: Step) -> float:
        return step.tasks

    def update(self, step: Step) -> dict[str, dict[str, float]]:
        keys, losses = step.names, _losses.nonnegative(step, "because weights use their ratios")
        totals = keyed.write(self.totals, keys, keyed.read(self.totals, keys, 0.0) + losses)
        counts = keyed.write(self.counts, keys, keyed.read(self.counts, keys, 0.0) + 1)
        if (step.number + 1) % self.period > 0:
            return {"totals": totals, "counts": counts}
        means = {key: total / counts[key] for key, total in totals.items()}
        last = {key: self.newer.get(key, mean) for key, mean in means.items()}
        return {"totals": {}, "counts": {}, "older": {**self.older, **last}, "newer": {**self.newer, **means}}


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=DWA,
        summary="gives more weight to tasks whose losses fall slowly from epoch to epoch",
        reference="Liu et al. 2019, arXiv 1803.10704, equation 7",
        traits={"differentiable", "stateful", "loss_scale_invariant", "scale_equivariant", "rotation_equivariant"},
        needs={"losses"},
    )
