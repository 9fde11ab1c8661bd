"""Fixed weights: what every adaptive method has to beat once the weights are tuned."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, OptionError, hookimpl


class Static(Homogenizer):
    """Row i is multiplied by a fixed weight w_i.

    d = 1/N Σ_i ω_i g_i,  ω_i = N w_i / Σ_j w_j  (`scale="mean"`)  or  ω_i = N w_i  (`scale="paper"`: d = Σ_i w_i g_i)

    Args:
        weights: one of
            a list, one weight per slot of the batch;
            a dict, one weight per domain, with the entry `"*"` for domains that it does not name (1 without it);
            `"random"`, a weight per domain (or per slot where domains are unknown), log-uniform in [1/spread, spread],
            decided by `seed` and the domain's name alone: draw several seeds and keep the one that validates best, and
            the plain sum has had the same tuning as the methods it is compared with;
            None, all equal.
            Weights are ≥ 0 and not all zero in a batch.
        spread: ≥ 1, for `"random"`.
        seed: for `"random"`.
        scale: see above.

    Differentiable in the rows. State: none. Cost: one read of the rows.

    Source: linear scalarization; the row *hyper* in the ablation of RotoGBML (Zhang et al., arXiv 2303.06679, section
    6.3) is the list [0.1, 0.5, 0.3, 0.4]. That it matches adaptive methods when tuned: Kurin et al. 2022
    (arXiv 2201.04122), Xin et al. 2022 (arXiv 2209.11379).

    Deviations: weights of 1 are 1 here and the mean is taken; LibMTL documents 1/T and uses 1.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("static(weights=[1, 3])").combine(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor([0.2500, 0.7500])
    """

    def __init__(
        self,
        weights: Sequence[float] | Mapping[str, float] | Literal["random"] | None = None,
        spread: float = 4.0,
        seed: int = 0,
        scale: Literal["mean", "paper"] = "mean",
    ) -> None:
        values = [] if weights is None or isinstance(weights, str) else weights
        for value in values.values() if isinstance(values, Mapping) else values:
            if not 0 <= value < math.inf:
                raise OptionError(f"static: `weights` must be finite and not negative; got {value!r}.")
        if not 1 <= spread < math.inf:
            raise OptionError(f"static: `spread` must be at least 1; got {spread!r}.")
        self.weights, self.spread, self.seed, self.scale = weights, spread, seed, scale

    def mix(self, evidence: Evidence) -> Tensor:
        weights = torch.tensor([self._weight(slot, evidence) for slot in range(evidence.tasks)], dtype=torch.float64)
        if not weights.sum() > 0:
            raise OptionError(f"static: `weights` must not all be zero in a batch; got {weights.tolist()}.")
        total = weights.sum() if self.scale == "mean" else 1.0
        return evidence.tasks * weights / total

    def _weight(self, index: int, evidence: Evidence) -> float:
        key = evidence.keys[index]
        if self.weights is None:
            return 1.0
        if self.weights == "random":
            # A hash, not a generator: a domain's weight must not depend on which domains were met before it.
            digest = hashlib.sha256(f"{self.seed}/{key.domain or key.slot}".encode()).digest()
            uniform = int.from_bytes(digest[:8], "big") / 2**64
            return float(self.spread ** (2 * uniform - 1))
        if isinstance(self.weights, Mapping):
            return float(self.weights.get(key.by("domain"), self.weights.get("*", 1.0)))
        if key.slot >= len(self.weights):
            # Not those of the evidence, which nonfinite="drop" may have made fewer.
            tasks = 1 + max(other.slot for other in evidence.keys)
            raise OptionError(
                f"static: `weights` must hold one weight per task; got {len(self.weights)} for {tasks} tasks. "
                "Give more weights, or a dict by domain."
            )
        return float(self.weights[key.slot])


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=Static,
        summary="fixed weights, by slot or by domain; tuned, the baseline that methods must beat",
        reference="Kurin et al. 2022, arXiv 2201.04122",
        traits={"differentiable", "scale_equivariant", "rotation_equivariant"},
    )
