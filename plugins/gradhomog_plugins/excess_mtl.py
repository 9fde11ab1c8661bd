"""ExcessMTL: more weight to tasks that are far from where they would converge, as their gradients tell."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, OptionError, hookimpl
from gradhomog_plugins._held_rows import Row, by_task, fitting, wide

# No weight falls below this share of the mean: a product of factors that has come to zero stays there for ever.
SMALLEST_WEIGHT = 1e-3
COLUMNS = 2**16  # of a block that fits the cache


class ExcessMTL(Homogenizer):
    """Weights that grow with the tasks' excess risks, estimated by the gradient in the metric that Adagrad has of it.

    S_i ← S_i + g_i²,  e_i = Σ_p g_ip² / √S_ip,  ē_i = e_i / e_i(0)
    w_i ← w_i exp(lr · ē_i),  then w ← N w / Σ_j w_j;  the step after it is d = 1/N Σ_i w_i g_i

    e_i is twice the second-order estimate of L_i − min L_i, with √S_i for the curvature; e_i(0) that of the first step,
    in which ē_i = 1 for all and no weight moves. Unlike a loss, it does not count what noise in the labels leaves.

    Args:
        lr: η > 0, rate of the weights.
        key: state by `"slot"` (place in the batch) or by `"domain"`, which is right where a slot's domain changes from
            batch to batch.
        scale: accepted for uniformity; the paper's weights add up to 1, so N identical rows give that row in both.

    Differentiable in the rows, with the weights as constants. A common factor of all steps' rows changes no weight, nor
    does a factor of one task's rows. A task whose rows have all been zero has ē = 1, as in a first step. Two tasks of
    one key in a batch share its weight; both are added to S, one after the other, and their mean ē moves the weight.

    State: √S_i for every key, in float32 or float64: N × params numbers in all, as much memory as the rows have
    themselves; and e_i(0) and w_i. A key whose row changes names or shapes starts anew, with its weight. Cost: the
    direction, and two reads and a write of N × params numbers; measured, a quarter of the time of TorchJD's ExcessMTL.

    Source: He et al. 2024, "Robust Multi-Task Learning with Excess Risks", arXiv 2402.02009, equations 6, 7 and 9.
    `lr` by default is that of the authors' code.

    Deviations: (1) the authors' code adds 1e-7 to S: then small rows have another metric; (2) in it this step's rows
    move w before the direction is taken, here afterwards; (3) its Σ w = N without the mean: directions N times as long;
    (4) weights of a batch that holds only some keys are divided by their mean, and to the others keep their
    proportion; (5) no weight falls below 1e-3 of the mean, or a task whose first gradient happened to be small would
    end the others for good; (6) TorchJD has 1.0 for `lr`, and moves w in the first step by e itself, which for 10⁶
    parameters is of the order of 10⁶: it gives one task all weight, for ever.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("excess_mtl(lr=1)")
    >>> rows = torch.eye(2)
    >>> _ = pipe.combine(rows), pipe.combine(torch.tensor([[0.1, 0.0], [0.0, 1.0]]))  # the first is near its end
    >>> pipe.combine(rows)
    tensor([0.3324, 0.6676])
    """

    carried = ("roots", "first", "weights")

    def __init__(
        self,
        lr: float = 0.01,
        key: Literal["slot", "domain"] = "slot",
        scale: Literal["mean", "paper"] = "mean",
    ) -> None:
        if not 0 < lr < math.inf:
            raise OptionError(f"excess_mtl: `lr` must be positive and finite; got {lr!r}.")
        self.lr, self.key, self.scale = lr, key, scale
        self.roots: dict[str, Row] = {}  # √S: squares would leave float32's range where rows do not
        self.first: dict[str, float] = {}
        self.weights: dict[str, float] = {}

    def mix(self, evidence: Evidence) -> Tensor:
        held = self._held(evidence.by(self.key))
        return held / held.mean()

    def update(self, evidence: Evidence) -> None:
        keys = evidence.by(self.key)
        excess = torch.stack([self._excess(key, row) for key, row in zip(keys, by_task(evidence.rows), strict=True)])
        relative: dict[str, list[float]] = {key: [] for key in keys}
        for key, value in zip(keys, excess.tolist(), strict=True):
            if value > 0:
                self.first.setdefault(key, value)
            relative[key].append(value / self.first[key] if key in self.first else 1.0)
        means = torch.tensor([sum(relative[key]) / len(relative[key]) for key in keys], dtype=torch.float64)
        held = self._held(keys)
        # What this batch's keys hold together stays the same, so that they keep their proportion to keys not in it.
        self.weights.update(zip(keys, (raised(held, means, self.lr) * held.mean()).tolist(), strict=True))

    def _held(self, keys: list[str]) -> Tensor:
        return torch.tensor([self.weights.get(key, 1.0) for key in keys], dtype=torch.float64)

    def _excess(self, key: str, row: Row) -> Tensor:
        """e of a task, once its row is added to S."""
        roots = fitting(self.roots, key, row)
        if roots is None:
            # The smallest number in place of zero: 0²/√0 is then zero, and a number that counts is what it was.
            roots = {n: torch.full_like(v, torch.finfo(wide(v)).tiny, dtype=wide(v)) for n, v in row.items()}
            self.first.pop(key, None)
        self.roots[key] = roots
        terms = [term for name, root in roots.items() for term in add(root.view(-1), row[name].reshape(-1))]
        return torch.stack(terms).double().sum()


def add(root: Tensor, row: Tensor) -> Iterator[Tensor]:
    """√S ← √(S + g²), in its own memory, and the terms of Σ g²/√S, block by block."""
    for start in range(0, root.numel(), COLUMNS):
        piece, part = root[start : start + COLUMNS], row[start : start + COLUMNS].to(root.dtype)
        torch.hypot(piece, part, out=piece)
        yield torch.dot(part, part / piece)


def raised(weights: Tensor, excess: Tensor, lr: float) -> Tensor:
    """w_i exp(lr · ē_i), divided by their mean, and none far below it: `[tasks]`, w > 0."""
    shares = len(weights) * torch.softmax(weights.log() + lr * excess, dim=0)
    kept = shares.clamp_min(SMALLEST_WEIGHT)
    return kept / kept.mean()


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=ExcessMTL,
        summary="gives more weight to tasks far from convergence, by an estimate of their excess risks",
        reference="He et al. 2024, arXiv 2402.02009",
        traits={"differentiable", "stateful", "scale_equivariant"},
        needs={"rows"},
    )
