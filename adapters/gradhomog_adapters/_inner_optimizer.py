"""The inner optimizer: TorchOpt's functional transformations on named parameters, one fresh state per task."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torchopt
from torchopt.base import GradientTransformation

from gradhomog import OptionError, Pipeline
from gradhomog_adapters._rows.gradients import Order, constants

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
        self.remembers = bool(captured(made.update, "dampening"))
        self._shared = None if self.remembers else made

    def __call__(self, order: Order = "second") -> GradientTransformation:
        """The transformation for one task. Of order "first" its updates do not depend on the parameters (weight decay
        would): then the derivative of K steps by the parameters before them is the identity."""
        made = self._shared or self._make()
        return GradientTransformation(made.init, partial(_at_constants, made.update)) if order == "first" else made

    def __getstate__(self) -> dict[str, Any]:  # closures can neither be copied nor saved
        return {"_make": self._make}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._make = state["_make"]
        self.share()


def _at_constants(update: Callable[..., Any], gradients: Any, state: Any, *, params: Any, inplace: bool) -> Any:
    return update(gradients, state, params=constants(params), inplace=inplace)


def check_steps(inner_steps: int, test_steps: int | None) -> tuple[int, int]:
    """The numbers of inner steps while training and at meta-test; by default the latter is the former.

    Raises:
        OptionError: one is no integer, or negative.
    """
    for name, steps in (("inner_steps", inner_steps), ("test_steps", test_steps)):
        if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 0):
            raise OptionError(f"`{name}` must be an integer and not negative; got {steps!r}.")
    return inner_steps, inner_steps if test_steps is None else test_steps


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
        if captured(inner.update, "dampening"):
            raise OptionError(
                "`inner` with momentum and dampening must be given as a function, lambda: torchopt.sgd(...), "
                "so that each task starts with a fresh one."
            )
        return InnerOptimizer(lambda: inner)
    if callable(inner) and not isinstance(inner, type) and isinstance(inner(), GradientTransformation):
        return InnerOptimizer(inner)
    raise OptionError(f"`inner` must be a name, a TorchOpt transformation or a function that makes one; got {inner!r}.")


def check_recomputable(pipe: Pipeline, inner: InnerOptimizer) -> None:
    """Raise OptionError for what does not do the same when an inner step is run again."""
    if any(member.homogenizer.overrides("attach") for member in pipe.members):
        raise OptionError(
            "`recompute` runs the encoder again on the way back, but a homogenizer that is attached to it may act "
            "otherwise then. Leave one of them out."
        )
    if inner.remembers:
        raise OptionError(
            "`recompute` runs inner steps again, but TorchOpt's momentum with dampening remembers which was the first. "
            "Leave one of them out."
        )


def captured(function: Any, name: str) -> Any:
    """The value of a variable that a function, or one that it captured, holds in its closure; None if nobody does."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    for variable, cell in zip(code.co_freevars if code else (), cells, strict=True):
        value = cell.cell_contents
        if variable == name:
            return value
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if callable(part) and (found := captured(part, name)) is not None:
                return found
    return None
