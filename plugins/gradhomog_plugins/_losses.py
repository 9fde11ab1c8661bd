"""Validation of losses and of weights computed from them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradhomog import OptionError, Step, keyed

LARGEST_WEIGHT = 1e30
"""A float32 row, at most 3.4e38, overflows with a much larger weight."""

LARGEST_SQUARED = 1e150
"""Adam sums squares: those of larger gradients are infinite, and the variable would never change again."""


def require_valid(valid: Tensor, step: Step, expected: str, advice: str = "", weights: Tensor | None = None) -> None:
    """Raise an OptionError that names the first task with `valid` False, bool `[tasks]`, and its loss or weight."""
    if bool(valid.all()):
        return
    index = valid.tolist().index(False)
    task = step.keys[index]
    domain = f" of domain '{task.domain}'" if task.domain else ""
    found = repr(float(step.losses[index].detach())) if weights is None else f"{float(weights[index].detach()):g}"
    raise OptionError(f"{expected}; task {task.slot}{domain} has {found}.{' ' if advice else ''}{advice}")


def positive(step: Step, reason: str) -> Tensor:
    """Return the losses `[tasks]`, which must be positive for the reason: "because tasks are weighted by 1/L"."""
    require_valid(step.losses > 0, step, f"losses must be positive, {reason}")
    return step.losses


def nonnegative(step: Step, reason: str, advice: str = "") -> Tensor:
    """Return the losses `[tasks]`, which must not be negative for the reason: "because weights use their ratios"."""
    require_valid(step.losses >= 0, step, f"losses must not be negative, {reason}", advice)
    return step.losses


def require_at_most(
    weights: Tensor,
    step: Step,
    formula: str,
    advice: str = "Divide the losses by constants, or use scale='mean'.",
    largest: float = LARGEST_WEIGHT,
) -> None:
    """Raise an OptionError that names the first task whose weight, of this formula, is larger, or not a number."""
    require_valid(weights <= largest, step, f"weights {formula} must be at most {largest:g}", advice, weights)


def require_squares(weighted: Tensor, step: Step) -> None:
    """Raise an OptionError that names the first task whose weighted loss is too large for Adam."""
    expected = f"losses times their weights must be below {LARGEST_SQUARED:g}, because Adam squares them"
    require_valid(weighted < LARGEST_SQUARED, step, expected, "Divide this loss by a constant.")


def inverse_logarithms(norms: Tensor) -> Tensor:
    """Return log 1/r of norms r `[tasks]`; for a task with r = 0 the mean of the others, or zero without others."""
    known = norms > 0
    logarithms = -torch.where(known, norms, 1.0).log()
    typical = logarithms[known].mean() if bool(known.any()) else torch.zeros((), dtype=torch.float64)
    return torch.where(known, logarithms, typical)


def exponential_weights(logarithms: Tensor, absent: Tensor | None = None) -> Tensor:
    """Return weights e^{l_i} divided by their mean, `[tasks]`: N softmax(l).

    `absent`: the logarithms of absent tasks `[absent]`, which count in the mean.
    """
    whole = logarithms if absent is None else torch.cat([logarithms, absent])
    return whole.shape[0] * torch.softmax(whole, dim=0)[: len(logarithms)]


def mean_by_key(keys: Sequence[str], losses: Tensor) -> Tensor:
    """Return for each task the mean loss of the tasks with its key, `[tasks]`, differentiable."""
    means = keyed.mean(keys, losses)
    return torch.stack([means[key] for key in keys])
