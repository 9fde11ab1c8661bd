"""GradNorm: learn weights under which the tasks' gradient norms follow their training rates."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, OptionError, hookimpl

# The paper's additive steps would make a weight negative: it may fall to this share of the average and no further.
SMALLEST_WEIGHT = 1e-3
LARGEST_RATIO = 1e300  # of a loss to its first: the mean of the ratios has to be a number


class GradNorm(Homogenizer):
    """Weights w, learnt by descent on Σ_i |w_i n_i − n̄ r_i^α|, so that slow tasks get larger gradients.

    n_i = ‖∇L_i‖,  n̄ = mean_i w_i n_i,  r_i = L̃_i / mean_j L̃_j,  L̃_i = L_i / L_i(0)
    ∂/∂w_i = sign(w_i n_i − n̄ r_i^α) · n_i      (n̄ and r are constants)
    w ← w · exp(−lr · w · ∂/∂w / n̄),  then w ← N w / Σ_j w_j;  the step after it is d = 1/N Σ_i w_i g_i

    The gradient needs row norms only: no second backward, no graph kept, nothing written into the model's gradients.

    Args:
        alpha: exponent α ≥ 0 of the training rates; 0 equalises the norms.
        lr: > 0, rate of the weights.
        initial_loss: L_i(0): `"first"`, the first loss seen under the key; or a number > 0, for example log(ways) in
            classification, which is right where the task under a key changes from step to step.
        key: state by `"slot"` (place in the batch) or by `"domain"`, which is right where a slot's domain changes from
            batch to batch, as in the strong setting.
        parameters: glob pattern over parameter names whose gradients are measured: the paper takes the last shared
            layer.
        relative: the step above, which a common factor of the gradients does not change and which cannot leave the
            positive weights; False is the paper's w ← w − lr · ∂/∂w, kept above 1e-3 of the mean; a
            step that would leave no weight positive is not taken.
        scale: `"mean"`: weights average to 1; `"paper"`: d = Σ_i w_i g_i.

    Differentiable in the rows, with the weights as constants, as in the paper. State: weights and first losses by key.
    Two tasks of one key in a batch share a weight, and both move it. A task without gradient keeps its weight.
    Negative losses and first losses of zero have no training rate and raise.

    Source: Chen et al. 2018, "GradNorm", arXiv 1711.02257, equations 1 and 2, algorithm 1.

    Deviations: (1) `relative`: the paper's additive steps do not settle where norms differ by more than about 1/lr,
    because a step is then longer than the weight (measured: rows of norms 100 and 1 end at weighted norms 70 to 1);
    multiplicative ones do, for norms of 10⁵ to 1; (2) with `relative=False` the floor; (3) the weights of a batch, not
    of all keys, average to 1, as a batch may hold only some domains; (4) reference code: gradnorm-pytorch has the
    exponent's sign reversed and writes second-order gradients into the model, LibMTL trains w with the model's
    optimizer under a softmax.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("gradnorm(alpha=0, lr=0.1)")
    >>> jacobian = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    >>> _ = pipe.combine(jacobian, losses=[1.0, 1.0])
    >>> pipe.combine(jacobian, losses=[1.0, 1.0])  # the large gradient was made smaller
    tensor([1.3505, 0.5498])
    """

    carried = ("weights", "first_losses")

    def __init__(
        self,
        alpha: float = 1.5,
        lr: float = 0.025,
        initial_loss: Literal["first"] | float = "first",
        key: Literal["slot", "domain"] = "slot",
        parameters: str = "*",
        relative: bool = True,
        scale: Literal["mean", "paper"] = "mean",
    ) -> None:
        if not 0 <= alpha < math.inf:
            raise OptionError(f"gradnorm: `alpha` must be finite and not negative; got {alpha!r}.")
        if not 0 < lr < math.inf:
            raise OptionError(f"gradnorm: `lr` must be positive; got {lr!r}.")
        if initial_loss != "first" and not 0 < float(initial_loss) < math.inf:
            raise OptionError(f"gradnorm: `initial_loss` must be 'first' or a positive number; got {initial_loss!r}.")
        self.alpha, self.lr, self.initial_loss = alpha, lr, initial_loss
        self.key, self.parameters, self.relative, self.scale = key, parameters, relative, scale
        self.weights: dict[str, float] = {}
        self.first_losses: dict[str, float] = {}

    def mix(self, evidence: Evidence) -> Tensor:
        weights = torch.tensor(normalized(self._held(evidence.by(self.key))), dtype=torch.float64)
        return weights if self.scale == "mean" else evidence.tasks * weights

    def update(self, evidence: Evidence) -> None:
        keys, norms = evidence.by(self.key), evidence.norms(self.parameters).tolist()
        held = self._held(keys)
        weights = normalized(held)
        rates = self._training_rates(keys, evidence.losses.tolist())
        mean_norm = sum(map(operator.mul, weights, norms)) / len(norms)
        if not mean_norm > 0:
            return  # no task has a gradient: nothing to balance
        # Two tasks of one key move its weight together.
        moves = dict.fromkeys(keys, 0.0)
        targets = [_power(rate, self.alpha) for rate in rates]
        for key, slope in zip(keys, leader_gradient(weights, norms, targets), strict=True):
            moves[key] -= self.lr * slope
        if self.relative:
            powers = [weight * moves[key] / mean_norm for key, weight in zip(keys, weights, strict=True)]
            greatest = max(powers)  # whose exponential is one: none overflows, and none is lost for all time
            moved = [max(w * math.exp(power - greatest), 1e-100) for w, power in zip(weights, powers, strict=True)]
        else:
            moved = [weight + moves[key] for key, weight in zip(keys, weights, strict=True)]
            above = sum(max(weight, 0.0) for weight in moved)
            if not 0 < above < math.inf:
                return  # a step so large that it leaves no weight: none is taken
            moved = [max(weight, SMALLEST_WEIGHT * above / len(moved)) for weight in moved]
        # What this batch's keys hold together stays the same, so that they keep their proportion to keys not in it.
        mean = sum(held) / len(held)
        self.weights.update(zip(keys, [weight * mean for weight in normalized(moved)], strict=True))

    def _held(self, keys: Sequence[str]) -> list[float]:
        return [self.weights.get(key, 1.0) for key in keys]

    def _training_rates(self, keys: Sequence[str], losses: Sequence[float]) -> list[float]:
        if min(losses) < 0:
            raise OptionError(f"gradnorm: losses must not be negative, r^α is undefined then; got {losses}.")
        if self.initial_loss == "first":
            seen = dict(self.first_losses)
            for key, loss in zip(keys, losses, strict=True):
                if loss == 0 and key not in seen:
                    raise OptionError(
                        f"gradnorm: the first loss of task '{key}' is zero, so it has no training rate. "
                        "Give `initial_loss` a number."
                    )
                seen.setdefault(key, loss)
            self.first_losses = seen
            first = [seen[key] for key in keys]
        else:
            first = [float(self.initial_loss)] * len(losses)
        relative = [min(loss / start, LARGEST_RATIO) for loss, start in zip(losses, first, strict=True)]
        return normalized(relative) if sum(relative) > 0 else [1.0] * len(losses)


def _power(base: float, exponent: float) -> float:
    """Up to 1e304: what is more is an error of plain numbers."""
    return math.exp(min(exponent * math.log(base), 700.0)) if base > 1 else base**exponent


def normalized(numbers: Sequence[float]) -> list[float]:
    """The numbers over their mean."""
    mean = sum(numbers) / len(numbers)
    return [number / mean for number in numbers]


def leader_gradient(weights: Sequence[float], norms: Sequence[float], targets: Sequence[float]) -> list[float]:
    """∂/∂w of Σ_i |w_i n_i − n̄ t_i| with n̄ = mean(w·n) and t constant: sign(w_i n_i − n̄ t_i) · n_i."""
    weighted = [weight * norm for weight, norm in zip(weights, norms, strict=True)]
    mean = sum(weighted) / len(weighted)
    above = [found - mean * target for found, target in zip(weighted, targets, strict=True)]
    return [((gap > 0) - (gap < 0)) * norm for gap, norm in zip(above, norms, strict=True)]


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=GradNorm,
        summary="learns weights under which gradient norms follow training rates",
        reference="Chen et al. 2018, arXiv 1711.02257",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"losses", "norms"},
    )
