"""The inner optimizer: TorchOpt's functional transformations on named parameters, one fresh state per task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torchopt
from torch import Tensor
from torchopt.base import GradientTransformation

from gradhomog import OptionError

Inner = Literal["sgd", "momentum", "adam", "adamw"] | GradientTransformation | Callable[[], GradientTransformation]
"""An inner optimizer: a name, a TorchOpt transformation, or a function that makes one."""

# Inside the root, so that the square root of a zero gradient (a dead ReLU) has a derivative: TorchOpt's default of 0
# gives NaN meta-gradients. 1e-8 is eps of Adam, and far below the squares of gradients that matter.
EPS_ROOT = 1e-8

# Partial functions, not lambdas: a learner can be pickled.
_BY_NAME: dict[str, Callable[[float], GradientTransformation]] = {
    "sgd": torchopt.sgd,
    "momentum": partial(torchopt.sgd, momentum=0.9),
    "adam": partial(torchopt.adam, eps_root=EPS_ROOT),
    "adamw": partial(torchopt.adamw, eps_root=EPS_ROOT),
}


class InnerOptimizer:
    """Gives a transformation for each task.

    Transformations are functions without a memory, their state is what `init` returns: all tasks share one, made before
    the first step (compiled code cannot make one). Only with momentum and dampening TorchOpt keeps "first call" in a
    closure: of such each task is given one of its own.
    """

    def __init__(self, make: Callable[[], GradientTransformation]) -> None:
        self._make = make
        self._shared: GradientTransformation | None = None
        self.share()

    def share(self) -> None:
        made = self._make()
        self.remembers = bool(_captured(made.update, "dampening"))
        self._shared = None if self.remembers else made

    def __call__(self) -> GradientTransformation:
        return self._shared or self._make()

    def __getstate__(self) -> dict[str, Any]:  # closures can neither be copied nor saved
        return {"_make": self._make}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._make = state["_make"]
        self.share()


def resolve(inner: Inner, lr: float) -> InnerOptimizer:
    """What gives each task its transformation.

    Raises:
        OptionError: an unknown name, something else than a transformation, or one with momentum and dampening: TorchOpt
            keeps "first call" of such a one in a closure, so a second task would be adapted otherwise than the first.
    """
    if isinstance(inner, str):
        if inner not in _BY_NAME:
            raise OptionError(
                f"`inner` must be one of {', '.join(_BY_NAME)} or a TorchOpt transformation; got {inner!r}."
            )
        if not 0 < lr < float("inf"):
            raise OptionError(f"`inner_lr` must be positive; got {lr!r}.")
        return InnerOptimizer(partial(_BY_NAME[inner], lr))
    if isinstance(inner, GradientTransformation):
        if _captured(inner.update, "dampening"):
            raise OptionError(
                "`inner` with momentum and dampening must be given as a function, lambda: torchopt.sgd(...), "
                "so that each task starts with a fresh one."
            )
        return InnerOptimizer(lambda: inner)
    if callable(inner) and not isinstance(inner, type) and isinstance(inner(), GradientTransformation):
        return InnerOptimizer(inner)
    raise OptionError(f"`inner` must be a name, a TorchOpt transformation or a function that makes one; got {inner!r}.")


def _captured(function: Any, name: str) -> Any:
    """The value of a variable that a function, or one that it captured, holds in its closure; None if nobody does."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    for variable, cell in zip(code.co_freevars if code else (), cells, strict=True):
        value = cell.cell_contents
        if variable == name:
            return value
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if callable(part) and (found := _captured(part, name)) is not None:
                return found
    return None


@dataclass(frozen=True)
class Descent:
    """Where the inner loop stands: the parameters that it changes, and the optimizer's state."""

    transformation: GradientTransformation
    parameters: dict[str, Tensor]
    state: Any

    @classmethod
    def start(cls, transformation: GradientTransformation, parameters: dict[str, Tensor]) -> Descent:
        return cls(transformation, parameters, transformation.init(parameters))

    def at(self, parameters: dict[str, Tensor]) -> Descent:
        """The same state, at other variables of the same values."""
        return Descent(self.transformation, parameters, self.state)

    def step(self, gradients: dict[str, Tensor], differentiable: bool) -> Descent:
        """One step; without `differentiable`, onto new leaves."""
        with torch.set_grad_enabled(differentiable):
            # inplace=False: TorchOpt's default writes into the parameters and cuts the graph in silence.
            updates, state = self.transformation.update(gradients, self.state, params=self.parameters, inplace=False)
            parameters = dict(torchopt.apply_updates(self.parameters, updates, inplace=False))
        return Descent(self.transformation, parameters, state)
