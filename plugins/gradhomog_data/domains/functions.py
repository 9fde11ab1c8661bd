"""Domain `functions:FAMILY`: regression on one-dimensional functions with random parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, get_args

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from gradhomog import DataError, Domain, DomainSpec, Split, Task, hookimpl, validated

Floats = NDArray[np.float64]

CELLS = 64
"""Number of cells that divide the range of a family's first parameter; cell c belongs to split `CELL_SPLITS[c % 4]`."""
CELL_SPLITS = ("train", "val", "train", "test")
INPUTS = (-5.0, 5.0)


@dataclass(frozen=True)
class Family:
    """A formula `f(x, *parameters)`, the range of each parameter, and Var f(x, *parameters).

    `variance` is taken over x and the parameters, independent and uniform: x in [-5, 5], each parameter in its range.
    """

    formula: Callable[..., Floats]
    ranges: tuple[tuple[float, float], ...]
    variance: float


def _bumps(x: Floats, *parameters: float) -> Floats:
    heights, centres, widths = np.reshape(parameters, (3, 3, 1))
    return np.asarray((heights * np.exp(-(((x - centres) / widths) ** 2) / 2)).sum(axis=0))


FAMILIES: dict[str, Family] = {
    "sinusoid": Family(lambda x, a, p: a * np.sin(x - p), ((0.1, 5.0), (0.0, np.pi)), 4.1547),
    "line": Family(lambda x, a, b: a * x + b, ((-3.0, 3.0), (-3.0, 3.0)), 28.0),
    "quadratic": Family(lambda x, c, a, b: a * (x - c) ** 2 + b, ((-3.0, 3.0), (-0.15, 0.15), (-3.0, 3.0)), 5.184),
    "step": Family(
        lambda x, c, low, high: np.asarray(np.where(x < c, low, high), dtype=np.float64),
        ((-4.0, 4.0), (-2.0, 2.0), (-2.0, 2.0)),
        4 / 3,
    ),
    "bumps": Family(_bumps, (*((-3.0, 3.0),) * 3, *((-4.0, 4.0),) * 3, *((0.3, 1.0),) * 3), 1.0348),
    "exponential": Family(lambda x, r, a: a * np.exp(r * x), ((-0.6, 0.6), (-2.0, 2.0)), 9.5545),
}
"""Scales differ by design: over [-5, 5] a step stays within 2, a line within 18, an exponential within 40."""


class Functions(Domain):
    """Regression tasks, inputs `[points, 1]` in [-5, 5] and targets `[points, 1]`, float32.

    The splits share no function: the range of the first parameter (the amplitude of a sinusoid, the slope of a line) is
    divided into 64 cells, which are assigned cyclically to train, val, train, test. The cells of every split are spread
    over the whole range: train has half of it, val and test have a quarter each. `all` is the whole range, as in the
    paper that introduced the sinusoids.
    """

    def __init__(self, variant: str, *, noise: float) -> None:
        self.name = f"functions:{variant}"
        self.input_shape = (1,)
        self.outputs = 1
        self.target_variance = FAMILIES[variant].variance + noise**2  # noise is independent of the function
        self._variant, self._noise = variant, noise  # not the `Family`: its formula cannot be pickled

    def check(self, split: Split, *, ways: int, shots: int, queries: int) -> None:
        """Raise `DataError` if the split is unknown; the number of functions is unlimited."""
        if split not in get_args(Split):
            raise DataError(
                f"domain {self.name!r}: `split` must be one of {', '.join(get_args(Split))}; got {split!r}."
            )

    def parameters(self, split: Split, random: np.random.Generator) -> Floats:
        """Draw the parameters of one function of a split."""
        low, high = np.array(FAMILIES[self._variant].ranges).T
        position = random.random(len(low))  # in the range of each parameter, 0..1
        cells = [cell for cell in range(CELLS) if split in ("all", CELL_SPLITS[cell % len(CELL_SPLITS)])]
        position[0] = (cells[random.integers(len(cells))] + position[0]) / CELLS
        return np.asarray(low + position * (high - low))

    def sample(self, split: Split, random: np.random.Generator, *, ways: int, shots: int, queries: int) -> Task:
        """Draw one function, with `shots` support and `queries` query points; `ways` is ignored."""
        self.check(split, ways=ways, shots=shots, queries=queries)
        parameters = self.parameters(split, random)
        x = random.uniform(*INPUTS, size=shots + queries)
        y = FAMILIES[self._variant].formula(x, *parameters) + self._noise * random.standard_normal(len(x))
        inputs, targets = (torch.from_numpy(column).float()[:, None] for column in (x, y))
        return Task(inputs[:shots], targets[:shots], inputs[shots:], targets[shots:], self.name)


@validated
def functions(variant: str, *, size: int = 0, noise: Annotated[float, Ge(0)] = 0.0) -> Functions:
    """Create the domain of a family of functions.

    Args:
        variant: a name in `FAMILIES`.
        size: ignored, because there are no pictures.
        noise: standard deviation of Gaussian noise on all targets, support and query, in their own units; >= 0.

    Raises:
        OptionError: unknown family, or noise out of range.
    """
    return Functions(variant, noise=float(noise))


@hookimpl
def gradhomog_domain() -> DomainSpec:
    return DomainSpec(
        factory=functions,
        summary="one-dimensional regression: sinusoids as in the MAML paper, lines, steps, bumps and more",
        reference="sinusoid: Finn, Abbeel, Levine 2017, arXiv:1703.03400, section 5.1",
        variants=tuple(FAMILIES),
    )
