"""Optimizers that cannot train with homogenized gradients, or not as expected."""

import inspect
import sys
import warnings
from types import FrameType
from typing import Any

import torch

from gradhomog.errors import MomentumWarning, OptionError
from gradhomog.step.pipelines import Pipeline

_STEP_OF_LBFGS = inspect.unwrap(torch.optim.LBFGS.step).__code__


def check_optimizer(optimizer: Any, pipe: Pipeline) -> None:
    """Check that a PyTorch optimizer can train with homogenized gradients.

    Called by `learner.step` and by the adapters of frameworks; for custom loops, before training. Optimizers of other
    libraries are not checked. L-BFGS is also found by `gradhomog.backward` and `gradhomog.loss` in its closure.

    Raises:
        OptionError: the optimizer is `SparseAdam`, because homogenized gradients are dense, also those of an embedding
            with `sparse=True`.

    Warns:
        UserWarning: the optimizer is L-BFGS, and the pipeline is not the plain mean: the gradient of the closure is not
            that of its value, so that the line search fails, and each evaluation is a step of the homogenizers.
        MomentumWarning: `momentum` or β₁ of a parameter group is not zero, and a homogenizer such as `tracked` averages
            rows.

    >>> import torch, gradhomog
    >>> optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], betas=(0.0, 0.999))
    >>> gradhomog.check_optimizer(optimizer, gradhomog.pipeline("tracked"))
    """
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise OptionError(
            "homogenized gradients are dense, also those of sparse embeddings, but SparseAdam refuses them. Use Adam."
        )
    if isinstance(optimizer, torch.optim.LBFGS) and pipe.members:
        warnings.warn(
            f"L-BFGS requires the gradient of one fixed loss, but that of {pipe} is not the gradient of the value that "
            "a closure returns, and each evaluation is a step of the homogenizers. Use Adam, or pipeline 'none'.",
            stacklevel=3,
        )
    averaging = [member for member in pipe.requirements.choosing if getattr(member.homogenizer, "average", 1) != 0]
    if not averaging or not isinstance(optimizer, torch.optim.Optimizer):
        return
    if factor := max(group.get("momentum", group.get("betas", (0.0,))[0]) for group in optimizer.param_groups):
        warnings.warn(
            f"{averaging[0].selector} averages rows over steps, and {type(optimizer).__name__} averages its direction "
            f"again with the factor {factor:g}. Use betas=(0.0, 0.999), or momentum=0.",
            MomentumWarning,
            stacklevel=3,
        )


def check_closure(pipe: Pipeline) -> None:
    """Warn as `check_optimizer` if the call is in a closure that L-BFGS evaluates, which receives no optimizer."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _STEP_OF_LBFGS:
        frame = frame.f_back
    if frame is not None:
        check_optimizer(frame.f_locals["self"], pipe)
