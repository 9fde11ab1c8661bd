"""IMTL-L: learn for each task the factor that brings its loss to one."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, OptionError, hookimpl
from gradhomog_plugins import _adam, _losses


class IMTLL(Homogenizer):
    """Row i is multiplied by a factor e^{s_i} that is learnt such that all scaled losses become one.

    L = Σ_i e^{s_i} L_i − s_i;  ∂L/∂L_i = e^{s_i};  s ← Adam(s, ∂L/∂s_i = e^{s_i} L_i − 1);  at rest e^{s_i} = 1/L_i
    d = 1/N Σ_i ω_i g_i,  ω_i = e^{s_i} / mean_j e^{s_j}  (`scale="mean"`)  or  N e^{s_i}  (`scale="paper"`: d = ∇L)

    This is twice the loss of `uw(kind="regression")` at −s. Adam does not see a factor, so with `scale="mean"` and one
    `lr` the two are the same method; with `scale="paper"` this one's step is twice as long.

    Args:
        lr: > 0, of the Adam that moves s after each step.
        bound: in (0, 69]; s stays in [−bound, bound]. A loss of zero would drive its weight to infinity otherwise; 10
            leaves it e¹⁰ = 22 026 times the first.
        key: state by `"slot"` (place in the batch) or by `"domain"`, which is right where a slot's domain changes from
            batch to batch, as in the strong setting.
        scale: see above.

    Acts on rows: the shared parameters see the combined loss, the heads of a multi-task network their own losses.

    Differentiable in the rows, the weights being constants: s is moved after the step. State: s and Adam's moments by
    key; two tasks of one key move it together. Losses must not be negative, as their s would go to the bound,
    nor so large (1e150) that Adam cannot square them. Cost: O(N).

    Source: Liu et al. 2021, "Towards Impartial Multi-task Learning", ICLR, section 3.2, loss balance.

    Deviations: (1) s has an Adam of its own; the paper and all reference code train it with the model's optimizer,
    whose weight decay then pulls the weights to one; (2) the bound; (3) the mean of the weights is one by default; (4)
    LibMTL has it with IMTL-G only: here the two are `imtl_l` and `imtl_g`, and `imtl_l + imtl_g` is the paper's hybrid
    for the shared parameters.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("imtl_l(lr=0.1, scale='paper')")
    >>> for _ in range(200):
    ...     result = pipe.homogenize(torch.eye(2), torch.tensor([0.5, 2.0]))
    >>> result.weights / 2  # 1/L
    tensor([2.0000, 0.5000], dtype=torch.float64)
    """

    carried = ("log_scales",)

    def __init__(
        self,
        lr: float = 1e-3,
        bound: float = 10.0,
        key: Literal["slot", "domain"] = "slot",
        scale: Literal["mean", "paper"] = "mean",
    ) -> None:
        if not 0 < lr < math.inf:
            raise OptionError(f"imtl_l: `lr` must be positive; got {lr!r}.")
        _losses.check_bound("imtl_l", bound)
        self.lr, self.bound, self.key, self.scale = lr, bound, key, scale
        self.log_scales: dict[str, _adam.Variable] = {}

    def mix(self, evidence: Evidence) -> Tensor:
        return _losses.exponentials(_adam.values(self.log_scales, evidence.by(self.key)), self.scale)

    def update(self, evidence: Evidence) -> None:
        losses, keys = evidence.losses.cpu(), evidence.by(self.key)
        _losses.require(losses >= 0, evidence, "imtl_l: losses must not be negative, no factor brings them to one")
        scaled = _adam.values(self.log_scales, keys).exp() * losses
        _losses.require_slopes(scaled, evidence, "imtl_l")
        slopes = scaled - 1
        self.log_scales.update(_adam.moved(self.log_scales, keys, slopes.tolist(), self.lr, bound=self.bound))


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=IMTLL,
        summary="learns for each task the factor that brings its loss to one",
        reference="Liu et al. 2021, Towards Impartial Multi-task Learning, ICLR, section 3.2",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"losses"},
    )
