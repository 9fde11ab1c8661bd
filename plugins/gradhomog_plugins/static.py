"""Static weights: fixed weights; when tuned, the baseline for adaptive methods."""

import hashlib
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, hookimpl
from gradhomog_plugins import _per_task
from gradhomog_plugins._per_task import Preferences


class Static(Homogenizer):
    """Fixed weights w_i.

        d = 1/N Σ_i ω_i g_i,  ω_i = w_i / mean_j w_j;  paper's scale: d = Σ_i w_i g_i

    Args:
        weights: a list, one weight per position in the batch (with fewer tasks the first weights are used; with more an
            error is raised), also of tasks with names: prefer a dict where some are left out; a dict, one weight per
            name of a task, with the entry `"*"` for other names (1 without it); `"random"`, a weight per name (or per
            position where tasks have none), log-uniform in [1/spread, spread], a function of `seed` and the name alone;
            or None, all equal. They must not all be zero.
        spread: bound of the random weights, used with `"random"`.
        seed: seed of the random weights, used with `"random"`.

    Use it when you compare methods: tuned static weights are the baseline that an adaptive method must exceed. With
    `"random"`, draw several seeds and keep the one with the best validation score; then the plain sum is tuned as much
    as the methods it is compared with. It is of no use where the best weights change during training, and it does not
    resolve conflicts.

    The mean is over the N tasks of the step and the absent ones: names in `weights`, and in earlier steps. So a name
    that never occurs changes the scale of all steps, but not the ratio of two tasks.

    Homogenizers after it read the weighted losses: `static(weights={"pde": 100, "*": 1}) + famo` is `famo` for a user
    who multiplied one loss by 100 (and all by a common factor).

    Zero rows need no exception.

    Differentiable in the rows.

    State: none.

    Cost: one read of the rows.

    Source: linear scalarization; the row *hyper* in the ablation of RotoGBML (Zhang et al., arXiv 2303.06679, section
    6.3) is the list [0.1, 0.5, 0.3, 0.4]. Evidence that tuned weights match adaptive methods: Kurin et al. 2022 (arXiv
    2201.04122), Xin et al. 2022 (arXiv 2209.11379).

    Deviations: (1) With equal weights the direction is the mean of the rows. LibMTL documents weights of 1/T, but its
    code uses 1.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("static(weights=[1, 3])").combine(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor([0.2500, 0.7500])
    """

    weights_losses = True

    def __init__(
        self, weights: Preferences | Literal["random"] = None, spread: Annotated[float, Ge(1)] = 4.0, seed: int = 0
    ) -> None:
        self.weights, self.spread, self.seed = weights, spread, seed

    def mix(self, step: Step) -> Tensor:
        return _per_task.divide_by_mean(self._weights(step), self.weights, step.names)

    def paper_scale(self, step: Step) -> Tensor:
        absent = _per_task.other_weights(self.weights, step.names)
        return (self._weights(step).sum() + sum(absent)) * step.tasks / (step.tasks + len(absent))

    def _weights(self, step: Step) -> Tensor:
        """Return w, float64 `[tasks]`."""
        if isinstance(self.weights, str):
            weights = [random_weight(self.spread, self.seed, name) for name in step.names]
            return torch.tensor(weights, dtype=torch.float64)
        return _per_task.numbers("weights", 1.0 if self.weights is None else self.weights, step)


def random_weight(spread: float, seed: int, name: str) -> float:
    """Return a log-uniform weight in [1/spread, spread] from a hash, independent of other names."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    uniform = int.from_bytes(digest[:8], "big") / 2**64
    return float(spread ** (2 * uniform - 1))


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=Static,
        summary="fixed weights by task; when tuned, the baseline for adaptive methods",
        reference="Kurin et al. 2022, arXiv 2201.04122",
        traits={"differentiable", "scale_equivariant", "rotation_equivariant"},
    )
