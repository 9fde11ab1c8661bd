"""The interface of outer optimizers, and a check that one holds a learner's parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from gradhomog.errors import OptionError


class OuterOptimizer(Protocol):
    """An optimizer that reads `.grad`: of `torch.optim`, `torchopt.Adam`, or a custom one."""

    def zero_grad(self) -> Any: ...
    def step(self) -> Any: ...


def check_holds_parameters(outer: OuterOptimizer, parameters: Iterable[Tensor]) -> None:
    """Raise if a PyTorch optimizer holds none of the parameters, so that its steps would train nothing.

    Raises:
        OptionError: the optimizer holds none of the parameters.
    """
    if not isinstance(outer, torch.optim.Optimizer):
        return  # the parameters of other optimizers cannot be read
    held = {id(parameter) for group in outer.param_groups for parameter in group["params"]}
    if held.isdisjoint(id(parameter) for parameter in parameters):
        raise OptionError(
            "`outer` must hold parameters of the learner; it holds none of them, so its step would train nothing. "
            "Create it with learner.parameters()."
        )
