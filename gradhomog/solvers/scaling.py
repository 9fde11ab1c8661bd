"""Validation, precision and scaling of Gramians, and the result type of all solvers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.rows.device_copies import to_device

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


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


def check_gramian(gramian: Tensor, rounding: float | None) -> tuple[Tensor, float]:
    """Return the Gramian in float64 and its rounding, by default that of its dtype.

    Raises:
        OptionError: the last two dimensions differ.
    """
    if gramian.dim() < 2 or gramian.shape[-1] != gramian.shape[-2]:
        raise OptionError(
            f"`gramian` must have shape [..., tasks, tasks]; got {tuple(gramian.shape)}. "
            "Compute it from rows: rows @ rows.T."
        )
    return gramian.double(), gramian_rounding(gramian.dtype) if rounding is None else rounding


def scaling_factors(gramian: Array) -> Array:
    """Return factors f `[..., tasks]` that give the rows f_i g_i norms in [1/2, 1). A zero row has the factor 0.

    The factors are powers of two, so that no digit of the Gramian is lost: division by the norms would round every
    entry, and for two rows that are opposite up to 1e-7 that error is 1 % of the square of their sum. Derivatives treat
    the factors as constants; norms would have to be differentiated.
    """
    squares = gramian.diagonal(axis1=-2, axis2=-1)
    exponents = np.frexp(squares)[1]  # squares = m·2^e with m in [1/2, 1): norms are below 2^⌈e/2⌉
    return np.where(squares > 0, np.ldexp(1.0, -exponents // 2), 0.0)


def scaled(gramian: Any, factors: Any) -> Any:
    """Return the Gramian of the rows f_i g_i, `[..., tasks, tasks]`, of arrays or of tensors with their graph."""
    halved = gramian * factors[..., None] * (0.5 * factors)[..., None, :]
    return halved + halved.mT  # products in float32 are not symmetric to the last digit


def to_numpy(tensor: Tensor) -> Array:
    """Convert a tensor to a NumPy array, detached and on the CPU."""
    array: Array = tensor.detach().cpu().numpy()
    return array


def to_tensor(array: npt.NDArray[Any], like: Tensor) -> Tensor:
    """Convert an array to a tensor on the device of `like`."""
    return to_device(torch.as_tensor(array), like.device)


def needs_graph(*tensors: Tensor) -> bool:
    """True if autograd records operations on one of these tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
