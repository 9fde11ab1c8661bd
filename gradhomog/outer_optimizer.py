"""The optimizer of a learner's parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from gradhomog.errors import OptionError


class OuterOptimizer(Protocol):
    """Anything that steps on `.grad`: `torch.optim`, `torchopt.Adam`, your own."""

    def zero_grad(self) -> Any: ...
    def step(self) -> Any: ...


def check_holds(outer: OuterOptimizer, parameters: Iterable[Tensor]) -> None:
    """Raise if an optimizer of PyTorch holds none of the parameters, so that its steps would train nothing.

    Raises:
        OptionError.
    """
    if not isinstance(outer, torch.optim.Optimizer):
        return  # its parameters are its own affair
    held = {id(parameter) for group in outer.param_groups for parameter in group["params"]}
    if held.isdisjoint(id(parameter) for parameter in parameters):
        raise OptionError(
            "`outer` holds none of the learner's parameters, so its step would train nothing. "
            "Make it with learner.parameters()."
        )
