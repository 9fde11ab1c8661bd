"""`residual_rows`: one row per residual, from vectorized derivatives at each point."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from gradhomog.errors import OptionError
from gradhomog.rows import Jacobian, as_jacobian
from gradhomog.uncompiled import uncompiled


class _Bound(nn.Module):
    """A residual whose model has other parameters during the call, as `functional_call` replaces those of a module."""

    def __init__(self, model: nn.Module, residual: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.residual = model, (residual,)  # in a tuple: it may be the model, which then had two names

    def forward(self, point: Tensor) -> tuple[Tensor, Tensor]:
        values = self.residual[0](point).reshape(-1)
        return values, values


@uncompiled
def residual_rows(
    terms: Sequence[tuple[Callable[[Tensor], Tensor], Tensor]], model: nn.Module, *, chunk_size: int | None = 1024
) -> tuple[Tensor, Jacobian]:
    """Return the loss of every residual at every point, and its gradient, for pipelines in which residuals are tasks.

    L_i = r_i²/2n and g_i = r_i ∇r_i / n, n the number of points of the term: Σ_i L_i = 1/2 Σ_terms mean ‖r‖², the
    mean over points of the squares of all residuals of a point

    Args:
        terms: pairs of a function and its points, such as an equation with points inside and a condition with points
            on the boundary. The function maps one point, without a batch dimension, to one or more residuals, and calls
            `model`. Derivatives w.r.t. the point are those of `torch.func` (`grad`, `hessian`, `jvp`); PyTorch's
            `torch.autograd.grad` does not work within vectorized functions.
        model: the module whose trainable parameters the rows are gradients of; it does not change.
        chunk_size: number of points that are differentiated at the same time, to limit memory; None: all of a term.

    Returns:
        Losses `[residuals]` and rows `[residuals, *shape]` by parameter name, in the order of terms, points and
        residuals of a point, for `Pipeline.combine(rows, losses)`, whose direction has the names of the parameters. The
        Gramian is computed once for all calls with the same rows.

    Raises:
        OptionError: there is no term, a term has no points, or the model no trainable parameter.

    Cost: 0.03 to 0.05 s for 512 residuals of 5,301 parameters in float64 on one core, with second derivatives that are
    propagated in the forward pass, and 0.11 to 0.2 s with `torch.func.hessian`. Memory: 2.6 times the rows, which are
    22 MB there, and the intermediate tensors of `chunk_size` points: for 4,096 residuals with `torch.func.hessian` 400
    MB in chunks of 256 and 870 MB without chunks.

    >>> import gradhomog
    >>> model = nn.Linear(1, 1)
    >>> equation = lambda x: torch.func.jacrev(model)(x) - 2  # u′ = 2
    >>> boundary = lambda x: model(x)                         # u(0) = 0
    >>> terms = [(equation, torch.linspace(0, 1, 3)[:, None]), (boundary, torch.zeros(1, 1))]
    >>> losses, rows = residual_rows(terms, model)
    >>> losses.shape, rows.gramian().shape
    (torch.Size([4]), torch.Size([4, 4]))
    """
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    if not parameters or not terms or not all(len(points) for _, points in terms):
        raise OptionError(
            "`residual_rows` requires a model with trainable parameters, and pairs of a function and at least one "
            f"point; got {len(parameters)} parameters, and {[len(points) for _, points in terms]} points."
        )
    names = {id(value): name for name, value in parameters.items()}
    # Every place of a parameter, once: `functional_call` does not restore a module that has two names.
    places = {
        ".".join(filter(None, ("model", module_name, name))): names[id(value)]
        for module_name, module in model.named_modules()
        for name, value in module.named_parameters(recurse=False)
        if id(value) in names
    }

    def at_point(bound: nn.Module, values: dict[str, Tensor], point: Tensor) -> Any:
        placed = {place: values[name] for place, name in places.items()}
        return functional_call(bound, placed, point, tie_weights=False)

    losses, blocks = list[Tensor](), {name: list[Tensor]() for name in parameters}
    with torch.no_grad():
        for residual, points in terms:
            derivatives = jacrev(partial(at_point, _Bound(model, residual)), has_aux=True)
            rows, values = vmap(derivatives, (None, 0), chunk_size=chunk_size)(parameters, points)
            losses.append(values.square().flatten() / (2 * len(points)))
            for name, parts in blocks.items():
                block = rows.pop(name)  # frees it
                factors = (values / len(points)).view(*values.shape, *[1] * (block.dim() - 2))
                parts.append((block * factors).flatten(0, 1))
    return torch.cat(losses), as_jacobian({name: torch.cat(blocks.pop(name)) for name in parameters})
