"""FAMO: weights under which all losses fall at the same relative rate, learnt from how fast they fell."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, NotDifferentiableError, OptionError, hookimpl
from gradhomog_plugins import _adam, _losses, _per_task

# A loss at its lowest counts as this share of the batch's mean distance: the weights stay finite, whatever the unit.
SMALLEST_GAP = 1e-8
# Of inner products that were summed in float32.
ROUNDING = 1e-6


class FAMO(Homogenizer):
    """Descent of Σ_i z_i log D_i, with weights z that are learnt so that all losses fall at the same relative rate.

    D_i = L_i − b_i,  z = softmax(ξ),  c = 1 / Σ_i z_i/D_i,  d = Σ_i (c z_i/D_i) g_i = c ∇Σ_i z_i log D_i
    δ_i = log D_i − log D'_i  (D' after the step);  ξ ← Adam(ξ, (∂z/∂ξ)ᵀ δ = z ∘ (δ − ⟨z, δ⟩))
    `change="first_order"`:  δ = ρ H z / Σ_j z_j H_jj,  H_ij = ⟨g_i, g_j⟩ / (D_i D_j)

    Args:
        lr: > 0, of the Adam that moves ξ after each step.
        weight_decay: γ ≥ 0, pulls ξ to zero and with it the weights to equal z.
        change: how δ is known. The paper computes all losses a second time, on the same batch after the step; a host
            shows them once. `"first_order"`: from the Gramian, what a small step along −d does to log D: a rate
            times H z, up to a factor. `"next_step"`: from the losses of the next step, exactly as the paper where the
            batch is the same at every step; where it is another, the difference between batches is in δ.
        decrease: ρ > 0, for `"first_order"`: what tasks that all agree fall by in one step, relative to D. The rate of
            the step is not known here. Adam does not see a factor, but the weight decay does: γ/ρ alone counts.
        lowest: b, the lowest losses that can be: one number, a list by slot, or a dict by domain with the entry `"*"`
            for those that it does not name (0 without it).
        key: state by `"slot"` (place in the batch) or by `"domain"`, which is right where a slot's domain changes from
            batch to batch, as in the strong setting.
        scale: accepted for uniformity; Σ_i c z_i/D_i = 1 means N identical rows give that row in both.

    Acts on rows: the shared parameters see the combined loss, the heads of a multi-task network their own losses.

    Differentiable in rows and losses with `"first_order"`, ξ being a constant; `"next_step"` has ξ depend on the losses
    of the step itself and refuses `create_graph`. State: ξ and Adam's moments by key, and the last D for
    `"next_step"`; two tasks of one key move ξ together. A loss below its `lowest` raises; one that has reached it takes
    nearly all of the step. A zero row has δ = 0. Cost: the Gramian, or nothing with `"next_step"`.

    Source: Liu et al. 2023, "FAMO: Fast Adaptive Multitask Optimization", arXiv 2306.03792, algorithm 1.

    Deviations: (1) `change`; with `"first_order"` every step's δ is relative to that step's rows, so that a common
    factor of all rows changes nothing, and steps of small gradients count as much as others; (2) D is kept above 1e-8
    of its mean, where the authors' code adds 1e-8; (3) γ = 1e-3, as in LibMTL and TorchJD; the authors' own two files
    have 0.01 and 1e-5; (4) the authors' code clips the shared gradient to norm 1, which is left to the optimizer here;
    (5) no running minimum is taken for b: D would be zero in just those steps in which a task gets on; (6) Adam's
    moments are part of the state; TorchJD 0.18 loses them.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("famo(lr=0.1)")
    >>> for _ in range(20):
    ...     result = pipe.homogenize(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.ones(2))
    >>> result.weights  # the second loss fell less fast
    tensor([0.6066, 1.3934], dtype=torch.float64)
    """

    carried = ("logits", "last_gaps")

    def __init__(
        self,
        lr: float = 0.025,
        weight_decay: float = 1e-3,
        change: Literal["first_order", "next_step"] = "first_order",
        decrease: float = 0.01,
        lowest: _per_task.PerTask = 0.0,
        key: Literal["slot", "domain"] = "slot",
        scale: Literal["mean", "paper"] = "mean",
    ) -> None:
        for name, value in (("lr", lr), ("decrease", decrease)):
            if not 0 < value < math.inf:
                raise OptionError(f"famo: `{name}` must be positive; got {value!r}.")
        if not 0 <= weight_decay < math.inf:
            raise OptionError(f"famo: `weight_decay` must be finite and not negative; got {weight_decay!r}.")
        _per_task.check("famo: `lowest`", lowest)
        self.lr, self.weight_decay, self.change, self.decrease = lr, weight_decay, change, decrease
        self.lowest, self.key, self.scale = lowest, key, scale
        self.needs = {"losses", "gramian"} if change == "first_order" else {"losses"}
        self.logits: dict[str, _adam.Variable] = {}
        self.last_gaps: dict[str, float] = {}

    def mix(self, evidence: Evidence) -> Tensor:
        gaps, logits = self._gaps(evidence), self.logits
        if self.change == "next_step":
            if torch.is_grad_enabled():
                raise NotDifferentiableError(
                    "famo: with `change='next_step'` the weights depend on the step's own losses through Adam, which "
                    "is not differentiated. Use `change='first_order'`, or create_graph=False."
                )
            logits = {**logits, **self._moved_since(evidence.by(self.key), gaps)}
        return weights(gaps, _adam.values(logits, evidence.by(self.key)).to(gaps.device))

    def update(self, evidence: Evidence) -> None:
        keys, gaps = evidence.by(self.key), self._gaps(evidence)
        if self.change == "first_order":
            shares = torch.softmax(_adam.values(self.logits, keys), dim=0)
            gaps = gaps.cpu()
            # Relative to the least: products of the smallest numbers are zero, and a common factor changes nothing.
            change = first_order_change(evidence.gramian().cpu(), gaps / gaps.min(), shares)
            self.logits.update(self._moved(keys, logit_slopes(shares, self.decrease * change)))
            return
        self.logits.update(self._moved_since(keys, gaps))
        together: dict[str, list[float]] = {}
        for key, gap in zip(keys, gaps.tolist(), strict=True):
            together.setdefault(key, []).append(gap)
        self.last_gaps.update({key: sum(found) / len(found) for key, found in together.items()})

    def _moved_since(self, keys: list[str], gaps: Tensor) -> dict[str, _adam.Variable]:
        """ξ, moved by what became of D since it was last seen; of the keys that were seen."""
        seen = [index for index, key in enumerate(keys) if key in self.last_gaps]
        moving = [keys[index] for index in seen]
        last = torch.tensor([self.last_gaps[key] for key in moving], dtype=torch.float64)
        shares = torch.softmax(_adam.values(self.logits, moving), dim=0)
        return self._moved(moving, logit_slopes(shares, last.log() - gaps.cpu()[seen].log()))

    def _moved(self, keys: list[str], slopes: Tensor) -> dict[str, _adam.Variable]:
        return _adam.moved(self.logits, keys, slopes.tolist(), self.lr, weight_decay=self.weight_decay)

    def _gaps(self, evidence: Evidence) -> Tensor:
        """D, `[tasks]`, positive."""
        losses = evidence.losses
        gaps = losses - _per_task.of_batch("famo: `lowest`", self.lowest, evidence, 0.0).to(losses)
        advice = "Give `lowest` a number below."
        _losses.require(gaps >= 0, evidence, "famo: losses must not be below `lowest`", advice)
        mean = (gaps / gaps.shape[0]).sum()  # whose sum alone may be too large
        return gaps.clamp_min(SMALLEST_GAP * mean) + (mean == 0)  # all at their lowest: all alike


def weights(gaps: Tensor, logits: Tensor) -> Tensor:
    """N c z_i/D_i, `[tasks]`, with the mean one: a softmax of ξ − log D."""
    return gaps.shape[0] * torch.softmax(logits - gaps.log(), dim=0)


def first_order_change(gramian: Tensor, gaps: Tensor, shares: Tensor) -> Tensor:
    """How fast log D_i falls along −Σ_j z_j ∇log D_j, relative to Σ_j z_j ‖∇log D_j‖², `[tasks]`."""
    products = gramian / (gaps[:, None] * gaps)
    squares = products.diagonal().clamp_min(0)
    change = products @ shares
    mean = shares @ change
    # Equal up to rounding is equal: Adam would make a step of a rounding error.
    lengths = squares.sqrt()
    length = shares @ lengths
    change = torch.where((change - mean).abs() > ROUNDING * length * (lengths + length), change, mean)
    size = shares @ squares
    return change / (size + (size == 0))  # rows of zero: 0/1


def logit_slopes(shares: Tensor, change: Tensor) -> Tensor:
    """(∂z/∂ξ)ᵀ δ = z ∘ (δ − ⟨z, δ⟩), `[tasks]`."""
    return shares * (change - shares @ change)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=FAMO,
        summary="weights under which all losses fall at the same relative rate",
        reference="Liu et al. 2023, arXiv 2306.03792, algorithm 1",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"losses", "gramian"},
    )
