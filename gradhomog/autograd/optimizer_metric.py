"""The metric of an optimizer: rows times P^½, whose norms and inner products are those of the step θ ← θ − P d."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, optim

from gradhomog.errors import NonfiniteError, OptionError
from gradhomog.ranks.dtensors import any_dtensor, as_dtensor, local_part
from gradhomog.rows import Direction, all_finite, check_real
from gradhomog.step.pipelines import Pipeline

SUPPORTED = (optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.RMSprop, optim.Adagrad, optim.SGD)
"""Optimizers that divide a direction by the roots of second moments, or by nothing."""

SMALLEST_RATE = 1e-12
"""Of learning rates relative to the largest: in a group with a rate of 0, rows are nearly 0, and can be divided."""


class OptimizerMetric:
    """The metric P of an optimizer's next step θ ← θ − P d: a step harms task i if g_iᵀ P d < 0.

    Rows J P^½ have the Gramian J P Jᵀ; their homogenized mean times P^-½ is the direction d. P is diagonal:

    - Adam, AdamW, NAdam, RAdam: η / (√v̂ + ε), with v̂ before this step, and its maximum for `amsgrad`;
    - RMSprop: η / (√v + ε), less the squared mean if it is centered; Adagrad: η / (√Σ g² + ε);
    - SGD: η;
    - SOAP, of the package pytorch-optimizer: Qᵀ D Q, with the orthogonal Q of its eigenbases and D that of Adam in
      these. Rows become J Qᵀ D^½, so their Gramian is that of P, and elements of rows are those in the eigenbases.

    η is the learning rate of the parameter's group relative to the largest. An element whose v is 0 has the mean of all
    √v, because it had no gradient, or the optimizer has taken no step; before the first step P = η. An element whose v
    has overflowed has P = 0 and a direction of 0, because the optimizer no longer changes it. Momentum is no part of
    P: a step with momentum moves by earlier directions too, which were homogenized with their rows.

    Args:
        optimizer: holds all parameters.
        parameters: the parameters by name.

    Raises:
        NonfiniteError: a second moment in the state of the optimizer is NaN.
        OptionError: the optimizer is another one, or does not hold a parameter; for SOAP, a parameter is split over
            processes.

    Cost: a few operations per parameter, and a number for each of its elements; a quotient for each row, and a product
    for the direction. For SOAP also a rotation of each row and of the direction, two matrix products per matrix.

    Source: as a metric for MGDA, MAdam (arXiv 2606.03904). SOAP: arXiv 2409.11321, algorithm 3.

    >>> import torch, gradhomog
    >>> w = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> adam = torch.optim.Adam([w])
    >>> w.grad = torch.tensor([0.01, 1.0]); adam.step()
    >>> metric, rows = gradhomog.OptimizerMetric(adam, {"w": w}), {"w": torch.tensor([[3.0, 1.0], [-1.0, 20.0]])}
    >>> scaled = metric.scale(rows)
    >>> (scaled["w"] @ scaled["w"].T).round()
    tensor([[ 901., -280.],
            [-280.,  500.]])
    >>> direction = metric.unscale(gradhomog.pipeline("pcgrad").combine(scaled))
    """

    def __init__(self, optimizer: optim.Optimizer, parameters: Mapping[str, Tensor]) -> None:
        if not isinstance(optimizer, (*SUPPORTED, *_soap())):
            raise OptionError(
                f"`metric` must be one of torch.optim's {', '.join(kind.__name__ for kind in SUPPORTED)}, "
                f"pytorch_optimizer's SOAP, or None; got {type(optimizer).__name__}."
            )
        check_real(parameters)
        groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
        for name, parameter in parameters.items():
            if id(parameter) not in groups:
                raise OptionError(f"the optimizer in `metric` must hold all shared parameters; it has no {name!r}.")
            if isinstance(optimizer, _soap()) and any_dtensor([parameter]):
                raise OptionError(f"`metric` must not be SOAP for parameters split over processes; {name!r} is one.")
        chosen = {name: groups[id(parameter)] for name, parameter in parameters.items()}
        largest = max(float(group["lr"]) for group in chosen.values()) or 1.0
        self.is_identity = True
        self._optimizer = type(optimizer).__name__
        self._dtypes = {name: parameter.dtype for name, parameter in parameters.items()}
        self._rotations: dict[str, Callable[..., Tensor]] = {}
        moments, factors, summands = list[Tensor](), list[float](), list[float]()
        for name, parameter in parameters.items():
            group, state = chosen[name], optimizer.state.get(parameter, {})
            if "Q" in state:
                self._rotations[name] = partial(_project, optimizer, state, group)
            rate = max(float(group["lr"]) / largest, SMALLEST_RATE)
            moment, correction = _second_moment(state, group)
            self.is_identity &= moment is None and rate == 1
            moments.append(local_part(parameter.detach()).new_zeros(()) if moment is None else moment)
            factors.append(correction / rate)
            summands.append(group.get("eps", 0.0) / rate)
        roots, self._overflowed = _inverse_roots(moments, factors, summands)
        self._inverse_roots = dict(zip(parameters, roots, strict=True))

    @classmethod
    def of_step(
        cls, optimizer: optim.Optimizer, parameters: Mapping[str, Tensor], pipe: Pipeline, inspect: bool = False
    ) -> OptimizerMetric | None:
        """Return the metric of a step of a pipeline; None if it is Euclidean, or nothing in the step depends on it.

        Raises:
            OptionError: a homogenizer keeps rows from step to step; see also `OptimizerMetric`.
        """
        if pipe.requirements.keeping_rows:
            raise OptionError(
                f"{' and '.join(pipe.requirements.keeping_rows)} keeps rows from step to step, but the metric of an "
                "optimizer changes in each step. Remove `metric`."
            )
        metric = cls(optimizer, parameters)
        compares_rows = inspect or pipe.requirements.statistics & {"norms", "gramian", "jacobian"}
        return metric if compares_rows and not metric.is_identity else None

    def scale(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return J P^½ for rows `[tasks, *shape]` by name; in float32 if P is and the rows are half."""
        rotated = {**rows, **{n: torch.stack([self._rotate(n, row) for row in rows[n]]) for n in self._rotations}}
        return {name: block / self._inverse_roots[name] for name, block in rotated.items()}

    def scale_row(self, row: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return P^½ g for the gradients of one task in the order of the parameters, None for a zero."""
        row = [g if g is None else self._rotate(name, g) for name, g in zip(self._inverse_roots, row, strict=True)]
        pairs = [(g, root) for g, root in zip(row, self._inverse_roots.values(), strict=True) if g is not None]
        scaled = iter(torch._foreach_div(*map(list, zip(*pairs, strict=True))) if pairs else ())
        return [None if gradient is None else next(scaled) for gradient in row]

    def scale_block(self, name: str, rows: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return P^½ g for the gradients of all tasks w.r.t. one parameter."""
        return [None if g is None else self._rotate(name, g) / self._inverse_roots[name] for g in rows]

    def row_like(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors with shape and dtype of a scaled row, which has float32 or wider."""
        return {
            name: value if value.dtype.itemsize >= 4 else torch.empty_like(value, dtype=torch.float32)
            for name, value in parameters.items()
        }

    def unscale(self, direction: Mapping[str, Tensor]) -> Direction:
        """Return P^-½ d̃ for a direction d̃ of scaled rows.

        Raises:
            NonfiniteError: it overflows in the dtype of a parameter.
        """
        roots = [self._inverse_roots[name] for name in direction]
        if self._overflowed:
            roots = [root.masked_fill(root.isinf(), 0.0) for root in roots]
        for index, value in enumerate(direction.values()):
            if roots[index].dim() and any_dtensor([value]):
                roots[index] = as_dtensor(roots[index], value)
        scaled = zip(direction, torch._foreach_mul(list(direction.values()), roots), strict=True)
        found = {name: self._rotate(name, value, "backward") for name, value in scaled}
        if not all_finite([value.to(self._dtypes[name]) for name, value in found.items()]):
            raise NonfiniteError(
                f"the direction overflows when it is divided by the preconditioner of {self._optimizer}. Divide the "
                "losses by a constant, or use metric=None. Nothing was written."
            )
        return found

    def _rotate(self, name: str, gradient: Tensor, project_type: str = "forward") -> Tensor:
        rotation = self._rotations.get(name)
        return gradient if rotation is None else rotation(gradient, project_type)


def _soap() -> tuple[type, ...]:
    """Return the class SOAP, if its package is in use."""
    module = sys.modules.get("pytorch_optimizer")
    return () if module is None else (module.SOAP,)


def _project(
    optimizer: Any, state: Mapping[str, Any], group: Mapping[str, Any], gradient: Tensor, project_type: str
) -> Tensor:
    """Return one gradient in the eigenbases of SOAP, or with `project_type="backward"` out of them."""
    gradient = gradient.to(state["exp_avg"].dtype)
    rotated: Tensor = optimizer.project(
        gradient, state, group["merge_dims"], group["max_precondition_dim"], project_type
    )
    return rotated


def _second_moment(state: Mapping[str, Any], group: Mapping[str, Any]) -> tuple[Tensor | None, float]:
    """Return v of one parameter, None before the first step and for SGD, and the factor c in √v̂ = c √v.

    Of a sharded parameter, v is the part of this rank.
    """
    if "square_avg" in state:
        square = state["square_avg"]
        return local_part(square - state["grad_avg"].square() if group["centered"] else square), 1.0
    if "sum" in state:
        return (local_part(state["sum"]) if float(state["step"]) else None), 1.0
    if "exp_avg_sq" not in state:
        return None, 1.0
    moment: Tensor = state["max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"]
    # SOAP counts the steps of a group, and changes no parameter in the first.
    steps = float(state["step"]) if "step" in state else group["step"] - 1
    return (local_part(moment), (1 - group["betas"][1] ** steps) ** -0.5) if steps else (None, 1.0)


def _inverse_roots(
    moments: Sequence[Tensor], factors: Sequence[float], summands: Sequence[float]
) -> tuple[list[Tensor], bool]:
    """Return √(factor √v + summand) for each v, in float32 or wider, and True if a v is infinite.

    An element that is 0 counts as the mean of those √v that are neither 0 nor infinite, or 1 if there are none.
    """
    flat = torch.cat([moment.reshape(-1) for moment in moments])  # one allocation, and few operations
    flat = flat.to(torch.promote_types(flat.dtype, torch.float32)).sqrt_()  # sums of half numbers would overflow
    smallest, largest = torch.stack(torch.aminmax(flat)).tolist()
    if math.isnan(smallest):
        raise NonfiniteError(
            "a second moment in the state of the optimizer in `metric` is NaN: it took a step with a gradient that was "
            "NaN, or whose square overflows. Load an earlier state of optimizer and model. Nothing was written."
        )
    if smallest == 0 or math.isinf(largest):
        finite = torch.where(flat.isfinite(), flat, 0.0)
        mean = finite.sum() / finite.count_nonzero()
        flat = torch.where(flat > 0, flat, mean.nan_to_num_(1.0))
    parts = torch.split(flat, [moment.numel() for moment in moments])
    if len(set(factors)) == len(set(summands)) == 1:
        flat.mul_(factors[0]).add_(summands[0])
    else:
        torch._foreach_mul_(parts, factors)
        torch._foreach_add_(parts, summands)
    flat.sqrt_()
    return [part.view_as(moment) for part, moment in zip(parts, moments, strict=True)], math.isinf(largest)
