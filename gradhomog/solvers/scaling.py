"""Validation, precision and scaling of Gramians, and the result type of all solvers."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.rows.arithmetic import to_device

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Numbers = TypeVar("Numbers", Array, Tensor)


class Solution(NamedTuple):
    """The result of a solver.

    Attributes:
        weights: float64 `[..., tasks]`.
        converged: bool, of the batch shape `[...]`. If False, the weights are the last iterate.
    """

    weights: Tensor
    converged: Tensor


def gramian_rounding(dtype: torch.dtype) -> float:
    """Return the rounding of a Gramian by the dtype of its rows, relative to their norms.

    1e-14 for float64, 1e-6 for float32, 2e-6 for float16 and 6e-5 for bfloat16. Inner products of float32 rows are
    accurate to about 1e-7 (measured). Rows of narrower dtypes are multiplied in float32, but were rounded themselves:
    an eigenvalue that is zero before rounding is up to the square of the dtype's machine epsilon after it.
    """
    return (1e-14 if dtype == torch.float64 else 1e-6) + torch.finfo(dtype).eps ** 2


Solver = TypeVar("Solver", bound=Callable[..., Solution])


def require_square(gramian: Tensor) -> None:
    """Raise unless the last two dimensions of a Gramian are equal.

    Raises:
        OptionError: they differ, or do not exist.
    """
    if gramian.dim() < 2 or gramian.shape[-1] != gramian.shape[-2]:
        raise OptionError(
            f"`gramian` must have shape [..., tasks, tasks]; got {tuple(gramian.shape)}. "
            "Compute it from rows: rows @ rows.T."
        )


def for_each_gramian(solve: Solver) -> Solver:
    """Return a solver of batches `[..., tasks, tasks]` that solves one Gramian after the other.

    Other arguments that are tensors of two or more dimensions have the same leading dimensions.
    """

    @functools.wraps(solve)
    def call(gramian: Tensor, *args: Any, **options: Any) -> Solution:
        require_square(gramian)
        if gramian.dim() == 2:
            with np.errstate(all="ignore"):  # a Gramian that overflows is reported by the step
                return solve(gramian, *args, **options)
        shared = [not isinstance(arg, Tensor) or arg.dim() < 2 for arg in args]
        found = [
            call(part, *(arg if same else arg[i] for arg, same in zip(args, shared, strict=True)), **options)
            for i, part in enumerate(gramian)
        ]
        return Solution(*map(torch.stack, zip(*found, strict=True)))

    return cast(Solver, call)


class ScaledGramian:
    """A Gramian G in float64, and the Gramian U of the rows f_i g_i, whose norms are in [1/2, 1).

    The factors f are powers of two, so that no digit of G is lost: division by the norms would round every entry, and
    for two rows that are opposite up to 1e-7 that error is 1 % of the square of their sum. Derivatives treat the
    factors as constants; norms would have to be differentiated.

    Args:
        gramian: G, symmetric `[tasks, tasks]`, any floating dtype.
        rounding: rounding of G relative to the rows' norms; by default that of its dtype.

    Attributes:
        gramian: G, float64.
        numbers, unit: G and U in NumPy.
        factors: f, `[tasks]`; 0 for a zero row.
    """

    def __init__(self, gramian: Tensor, rounding: float | None) -> None:
        self.gramian = gramian.double()
        self.rounding = gramian_rounding(gramian.dtype) if rounding is None else rounding

    @functools.cached_property
    def numbers(self) -> Array:
        return to_numpy(self.gramian)

    @functools.cached_property
    def factors(self) -> Array:
        squares = self.numbers.diagonal()
        exponents = np.frexp(squares)[1]  # squares = m·2^e with m in [1/2, 1): norms are below 2^⌈e/2⌉
        return np.where(squares > 0, np.ldexp(1.0, -exponents // 2), 0.0)

    @functools.cached_property
    def unit(self) -> Array:
        return _scale(self.numbers, self.factors)

    def differentiable_unit(self) -> Tensor:
        """Return U with the graph of G."""
        return _scale(self.gramian, self.tensor(self.factors))

    def tensor(self, array: npt.NDArray[Any]) -> Tensor:
        """Convert an array to a tensor on the device of G."""
        return to_tensor(array, self.gramian)


def _scale(gramian: Numbers, factors: Numbers) -> Numbers:
    """Return the Gramian of the rows f_i g_i, of an array or of a tensor with its graph."""
    halved = gramian * factors[:, None] * (0.5 * factors)
    return halved + halved.mT  # products in float32 are not symmetric to the last digit


def to_numpy(tensor: Tensor) -> Array:
    """Convert a tensor to a NumPy array, detached and on the CPU."""
    array: Array = tensor.detach().cpu().numpy()
    return array


def to_tensor(array: npt.NDArray[Any], like: Tensor) -> Tensor:
    """Convert an array to a tensor on the device of `like`."""
    return torch.as_tensor(array) if like.is_cpu else to_device(torch.as_tensor(array), like.device)


def needs_graph(*tensors: Tensor) -> bool:
    """True if autograd records operations on one of these tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
