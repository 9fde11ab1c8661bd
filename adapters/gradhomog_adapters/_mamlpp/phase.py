"""What the number of meta-steps done decides about the next rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gradhomog_adapters._mamlpp.multi_step import shares

Order = Literal["second", "first", "none"]
"""What of an inner step is differentiated: all of it; all but its gradient; nothing."""


@dataclass(frozen=True)
class Phase:
    """Decided once per call: rows do not ask the device for a number.

    Attributes:
        order: of the inner steps' derivatives.
        passes: the numbers of inner steps after which the query set is seen, rising; the last is that of all.
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
