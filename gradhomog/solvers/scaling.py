"""Rows brought to about the same length, by factors that are powers of two: no digit of the Gramian is lost."""

from __future__ import annotations

import torch
from torch import Tensor

from gradhomog.errors import OptionError


def checked(gramian: Tensor) -> Tensor:
    """The Gramian in float64.

    Raises:
        OptionError: the last two dimensions are not square.
    """
    if gramian.dim() < 2 or gramian.shape[-1] != gramian.shape[-2]:
        raise OptionError(
            f"`gramian` must have shape [..., tasks, tasks]; got {tuple(gramian.shape)}. Of rows it is rows @ rows.T."
        )
    return gramian.double()


def scaled(gramian: Tensor) -> tuple[Tensor, Tensor]:
    """Factors f `[..., tasks]` and the Gramian of the rows f_i g_i `[..., tasks, tasks]`, both float64.

    The scaled rows have norms in [1/2, 1). A zero row has the factor 0.

    Dividing by the norms themselves would round every entry, and that error decides where rows nearly cancel: for two
    rows that are opposite up to 1e-7 it is 1 % of what is left of their sum's square. It would also need a derivative;
    these factors are constants.
    """
    squares = gramian.detach().diagonal(dim1=-2, dim2=-1)
    exponents = torch.frexp(squares)[1]  # squares = m·2^e with m in [1/2, 1): norms are below 2^⌈e/2⌉
    factors = torch.exp2(torch.floor(-0.5 * exponents.double())).masked_fill(squares <= 0, 0.0)
    halved = gramian * (factors.unsqueeze(-1) * (0.5 * factors).unsqueeze(-2))
    return factors, halved + halved.mT  # products in float32 are not symmetric to the last digit


def needs_graph(*tensors: Tensor) -> bool:
    """Whether somebody will ask for a derivative by one of these."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
