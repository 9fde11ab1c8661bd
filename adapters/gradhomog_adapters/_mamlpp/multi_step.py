"""Schedules of MAML++ by meta-step: order of derivatives, and weights of the query losses after each inner step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog import to_device
from gradhomog_adapters._gradients import Order

# Minimum weight of a step before the last, in units of 1/K, until the annealing ends (the authors' code).
MIN_SHARE = 0.03


def loss_weights(inner_steps: int, done: int, until: int) -> list[float]:
    """Weights v_0 … v_{K−1} of L = Σ_k v_k L_Q(θ^{k+1}) after `done` meta-steps; their sum is one.

    With e = done/until: v_k = max(1 − e, 0.03)/K for k < K − 1, and the last weight is the rest; 1 if done ≥ until.

    Source: Antoniou et al. 2019, arXiv 1810.09502, section 4 (multi-step loss). The constants are those of the authors'
    code, in which e changes only between epochs.
    """
    if inner_steps == 0:
        return []
    if done >= until:
        return [0.0] * (inner_steps - 1) + [1.0]
    early = max(1 - done / until, MIN_SHARE) / inner_steps
    return [early] * (inner_steps - 1) + [1 - (inner_steps - 1) * early]


@dataclass(frozen=True)
class MetaStepSettings:
    """Settings of one meta-step according to the schedules: order of derivatives, and weights of the losses.

    Computed once per meta-step, because this synchronizes with the device.


    Attributes:
        order: order of the derivatives of inner steps.
        passes: the numbers of inner steps after which the query loss is evaluated, increasing; the last one is K.
        loss_weights: weight of each pass in the loss, `[passes]`; a tensor, so that compiled code reads new values.
    """

    order: Order
    passes: tuple[int, ...]
    loss_weights: Tensor

    @classmethod
    def of(
        cls, done: int, inner_steps: int, multi_step_steps: int, first_order_steps: int, like: Tensor
    ) -> MetaStepSettings:
        weights = {k + 1: v for k, v in enumerate(loss_weights(inner_steps, done, multi_step_steps)) if v} or {0: 1.0}
        order: Order = "first" if done < first_order_steps else "second"
        return cls(
            order, tuple(weights), to_device(torch.tensor(list(weights.values()), dtype=like.dtype), like.device)
        )
