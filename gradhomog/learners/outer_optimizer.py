"""The interface of outer optimizers, and checks: of the parameters that one holds, and of its momentum."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from gradhomog.errors import MomentumWarning, OptionError
from gradhomog.step.pipelines import Pipeline


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


def warn_of_momentum(outer: OuterOptimizer, pipe: Pipeline) -> None:
    """Warn if a PyTorch optimizer averages directions, although a homogenizer such as `tracked` averages their rows.

    Called by `learner.step` and by the adapters of frameworks; for custom loops, before training. The parameters of
    other optimizers cannot be read.

    Warns:
        MomentumWarning: `momentum` or β₁ of a parameter group is not zero.

    >>> import torch, gradhomog
    >>> optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], betas=(0.0, 0.999))
    >>> gradhomog.warn_of_momentum(optimizer, gradhomog.pipeline("tracked"))
    """
    averaging = [member for member in pipe.requirements.choosing if getattr(member.homogenizer, "average", 1) != 0]
    if not averaging or not isinstance(outer, torch.optim.Optimizer):
        return
    if factor := max(group.get("momentum", group.get("betas", (0.0,))[0]) for group in outer.param_groups):
        warnings.warn(
            f"{averaging[0].selector} averages rows over steps, and {type(outer).__name__} averages its direction "
            f"again with the factor {factor:g}. Use betas=(0.0, 0.999), or momentum=0.",
            MomentumWarning,
            stacklevel=3,
        )
