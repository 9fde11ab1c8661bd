"""The multi-step loss: the weight of the query loss after each inner step, as a function of the meta-steps done."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gradhomog_adapters._rows.gradients import Order

# Of the even share 1/K: what a step that is not the last keeps until the annealing ends (the authors' code).
LEAST = 0.03


def shares(inner_steps: int, done: int, until: int) -> list[float]:
    """v_0 … v_{K−1} of L = Σ_k v_k L_Q(θ^{k+1}) in the meta-step that follows `done` others; they add up to one.

    With e = done/until: v_k = max(1 − e, 0.03)/K for k < K − 1, and the last has the rest; from `until` on it has all.

    Source: Antoniou et al. 2019, arXiv 1810.09502, section 4 (multi-step loss); the numbers are those of the authors'
    code, where e only changes from epoch to epoch.
    """
    if inner_steps == 0:
        return []
    if done >= until:
        return [0.0] * (inner_steps - 1) + [1.0]
    each = max(1 - done / until, LEAST) / inner_steps
    return [each] * (inner_steps - 1) + [1 - (inner_steps - 1) * each]


@dataclass(frozen=True)
class Phase:
    """What the number of meta-steps done decides about the next rows; computed once per step, as it reads a number
    from the device.

    Attributes:
        order: of the inner steps' derivatives.
        passes: the numbers of inner steps after which the query loss is taken, rising; the last is that of all.
        shares: of each pass in the loss, `[passes]`: a tensor, so that compiled code takes new values.
    """

    order: Order
    passes: tuple[int, ...]
    shares: Tensor

    @classmethod
    def of(cls, done: int, inner_steps: int, multi_step_steps: int, first_order_steps: int, like: Tensor) -> Phase:
        counted = {k + 1: v for k, v in enumerate(shares(inner_steps, done, multi_step_steps)) if v} or {0: 1.0}
        order: Order = "first" if done < first_order_steps else "second"
        return cls(order, tuple(counted), like.new_tensor(list(counted.values())))
