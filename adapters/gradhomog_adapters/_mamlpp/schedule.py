"""Cosine annealing of the outer rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradhomog import OptionError


def _cosine_rate(initial: float, final: float, steps: int, done: Any) -> float:
    share = min(float(done) / steps, 1.0)
    return final + (initial - final) * (1 + math.cos(math.pi * share)) / 2


def cosine(initial: float, final: float, steps: int) -> Callable[[Any], float]:
    """Cosine schedule: final + (initial − final)(1 + cos(π · done/steps))/2 after `done` steps, then `final`.

    Also for TorchOpt's optimizers: `torchopt.Adam(parameters, lr=cosine(1e-3, 1e-5, 50_000))`.

    Raises:
        OptionError: `steps` is not positive.

    >>> rate = cosine(1.0, 0.0, 100)
    >>> [round(rate(done), 4) for done in (0, 50, 100, 200)]
    [1.0, 0.5, 0.0, 0.0]
    """
    if steps < 1:
        raise OptionError(f"`steps` must be at least 1; got {steps!r}.")
    return partial(_cosine_rate, initial, final, steps)


@contextmanager
def anneal_rate(outer: Any, done: int, steps: int, final: float) -> Iterator[None]:
    """Context for one step, with the optimizer's rates set by the cosine schedule; restored if the step raises.

    The initial rate of each group is its `initial_lr`, stored in the group and saved with it, as in PyTorch's
    schedulers.

    Raises:
        OptionError: `outer` is not an optimizer of PyTorch, whose rate could be set, or its rate is below `final`.
    """
    if not isinstance(outer, torch.optim.Optimizer):
        kind = f"{type(outer).__module__}.{type(outer).__qualname__}"
        raise OptionError(
            f"`anneal_steps` requires an optimizer of torch.optim; got a {kind}, whose rate cannot be set. For one of "
            "TorchOpt pass a schedule, lr=gradhomog_adapters.mamlpp.cosine(1e-3, 1e-5, 50_000), and "
            "leave `anneal_steps` at 0."
        )
    before = [(group, group["lr"], "initial_lr" in group) for group in outer.param_groups]
    try:
        for group in outer.param_groups:
            initial = float(group.setdefault("initial_lr", _copy_rate(group["lr"])))
            if final > initial:
                raise OptionError(
                    f"`final_outer_lr` must not exceed the outer optimizer's rate, {initial:g}; got {final:g}."
                )
            rate = cosine(initial, final, steps)(done)
            # A new tensor, so that the old one can be restored.
            group["lr"] = torch.full_like(group["lr"], rate) if isinstance(group["lr"], Tensor) else rate
        yield
    except BaseException:
        for group, rate, annealing in before:
            group["lr"] = rate
            if not annealing:
                group.pop("initial_lr", None)
        raise


def _copy_rate(rate: float | Tensor) -> float | Tensor:
    return rate.clone() if isinstance(rate, Tensor) else rate
