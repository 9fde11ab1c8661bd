"""Arrays of estimates with 95 % confidence intervals, by the jackknife over batches, also as text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradhomog.table import LEVEL

MIN_BATCHES = 3
"""Without one of three batches, two remain: the fewest that have a pair of different batches."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """Estimates of several quantities with confidence intervals `value ± half_width`.

    Attributes:
        value: float64, any shape; NaN for a quantity that is undefined or unresolved.
        half_width: half the width of the 95 % interval, of the same shape; NaN if the value is NaN.
    """

    value: Tensor
    half_width: Tensor

    @property
    def low(self) -> Tensor:
        return self.value - self.half_width

    @property
    def high(self) -> Tensor:
        return self.value + self.half_width

    def where(self, condition: Tensor) -> Estimate:
        """Return these estimates, with NaN where the condition is False."""
        return Estimate(
            self.value.masked_fill(~condition, torch.nan), self.half_width.masked_fill(~condition, torch.nan)
        )


@dataclass(frozen=True, eq=False)
class TransformedEstimate:
    """Estimates after a monotone function, with confidence intervals from `low` to `high`.

    Attributes:
        value: float64, any shape; NaN for a quantity that is undefined or unresolved.
        low, high: ends of the 95 % interval, of the same shape; may be infinite.
    """

    value: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, estimate: Estimate, function: Callable[[Tensor], Tensor]) -> TransformedEstimate:
        """Apply an increasing or a decreasing function to an estimate and to the ends of its interval."""
        ends = torch.stack([function(estimate.low), function(estimate.high)])
        return cls(function(estimate.value), ends.amin(0), ends.amax(0))


def jackknife(value: Tensor, without: Tensor) -> Estimate:
    """The confidence intervals of statistics of B independent batches, by the delete-one jackknife:

        θ ± t(95 %, B − 1) · √v,    v = (B − 1)/B · Σ_b (θ₋b − mean_b θ₋b)²

    θ₋b is the statistic of all batches except b. For a mean this is the interval of `mean_interval`. The value is not
    corrected for bias: the pair statistics of this package have none, and for a ratio the correction adds variance. For
    an average over pairs of batches, v is on average too large, by a factor of at most 2 if noise dominates the pairs
    (Efron & Stein 1981, theorem 2), so that intervals then contain the true value in more than 95 % of cases.

    Args:
        value: θ, float64, any shape.
        without: θ₋b, `[batches, *shape]`, at least `MIN_BATCHES`. If one of them is NaN, the estimate is NaN.

    Source: Tukey 1958; Efron & Stein 1981, "The jackknife estimate of variance".

    >>> values = torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64)
    >>> found = jackknife(values.mean(), (values.sum() - values) / 3)  # the mean, and the means of the other three
    >>> print(f"{found.value:.3f} ± {found.half_width:.3f}")
    3.000 ± 3.437
    """
    batches = len(without)
    variance = (batches - 1) / batches * (without - without.mean(0)).square().sum(0)
    half_width = student_quantile((1 - LEVEL) / 2, batches - 1) * variance.sqrt()
    return Estimate(value, half_width).where(value.isfinite() & half_width.isfinite())


def estimate(function: Callable[..., Tensor], *statistics: tuple[Tensor, Tensor]) -> Estimate:
    """The jackknife of a function of statistics, each given by its value and its values without each batch."""
    values, without = zip(*statistics, strict=True)
    return jackknife(function(*values), function(*without))


def student_quantile(tail: float, freedom: int) -> float:
    """Return the number that a variable of Student's t distribution exceeds with probability `tail`."""
    from scipy import special  # imported here: `import gradhomog` and light commands do not need it

    return float(special.stdtrit(freedom, 1 - tail))


def record(value: Any) -> Any:
    """Return dataclasses, tensors and lists for JSON, which has no NaN, here None, and no infinity, here "inf"."""
    if dataclasses.is_dataclass(value):
        return {field.name: record(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Tensor):
        return record(value.tolist())
    if isinstance(value, (list, tuple)):
        return [record(item) for item in value]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return None if math.isnan(value) else str(value)


UNRESOLVED = "unresolved"


def interval(estimate: Estimate, *index: int, percent: bool = False, digits: int | None = None) -> str:
    """One estimate as text: `0.012 ± 0.004`, in percent `46.6 ± 2.0`, or `unresolved`."""
    value, half_width = float(estimate.value[index]), float(estimate.half_width[index])
    if math.isnan(value):
        return UNRESOLVED
    factor, places = (100, 1) if percent else (1, 3)
    places = places if digits is None else digits
    # Adding 0.0 converts −0.00, a small negative number after rounding, to 0.00.
    return f"{round(factor * value, places) + 0.0:.{places}f} ± {factor * half_width:.{places}f}"


def significant(estimate: Estimate, *index: int) -> str:
    """One estimate of any magnitude as text, to three significant digits: `0.0123 ± 0.0041`, or `unresolved`."""
    value, half_width = float(estimate.value[index]), float(estimate.half_width[index])
    if math.isnan(value):
        return UNRESOLVED
    exponent = math.floor(math.log10(abs(value))) if value else 0
    if -4 <= exponent < 5:
        places = max(0, 2 - exponent)
        return f"{value:.{places}f} ± {half_width:.{places}f}"
    return f"{value:.2e} ± {half_width:.0e}"


def ratio_range(estimate: TransformedEstimate, *index: int, factor: float = 1.0, unit: str = "") -> str:
    """One ratio as text: `16 (11 to 28)`, `16 (> 11)` without an upper end, `> 11` without a value, `unresolved`."""
    value, low, high = (factor * float(part[index]) for part in (estimate.value, estimate.low, estimate.high))
    if math.isnan(value):
        return UNRESOLVED
    if math.isinf(value):
        return f"> {number(low)}{unit}" if 0 < low < math.inf else UNRESOLVED
    return f"{number(value)}{unit} ({f'> {number(low)}' if math.isinf(high) else f'{number(low)} to {number(high)}'})"


def number(value: float) -> str:
    """A non-negative number with about two significant digits: `0`, `0.25`, `1.85`, `4.6`, `16`, `1,200`."""
    if value >= 10:
        return f"{round(value, 1 - math.floor(math.log10(value))):,.0f}"
    if value >= 0.005:
        return f"{value:.1f}" if value >= 2 else f"{value:.2f}"
    return f"{value:.1g}" if value else "0"
