"""The inner optimizer: TorchOpt's functional transformations on named parameters, one fresh state per task."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import torchopt
from annotated_types import doc
from torchopt.base import GradientTransformation

from gradhomog import OptionError, Pipeline
from gradhomog_adapters._gradients import Order, detach_all

# Added inside the square root, which then has a derivative at a zero gradient (a dead ReLU). TorchOpt's default of 0
# gives NaN meta-gradients. 1e-8 is Adam's eps, and small compared with the squares of typical gradients; of smaller
# ones, below 1e-4, it shortens the steps.
EPS_ROOT = 1e-8

Inner = Annotated[
    Literal["sgd", "momentum", "adam", "adamw"] | GradientTransformation | Callable[[], GradientTransformation],
    doc(f"adam and adamw have eps_root={EPS_ROOT:g}"),
]
"""An inner optimizer: a name, a TorchOpt transformation, or a function that returns one."""

# Partial functions, not lambdas, so that a learner can be pickled.
_BY_NAME: dict[str, Callable[[float], GradientTransformation]] = {
    "sgd": torchopt.sgd,
    "momentum": partial(torchopt.sgd, momentum=0.9),
    "adam": partial(torchopt.adam, eps_root=EPS_ROOT),
    "adamw": partial(torchopt.adamw, eps_root=EPS_ROOT),
}


class InnerOptimizer:
    """Returns a transformation for each task.

    Transformations are pure functions, with their state in the result of `init`. All tasks therefore share one, created
    before the first step (compiled code cannot create one). An exception is momentum with dampening: TorchOpt stores
    "first call" in a closure, so each task receives a new transformation.
    """

    def __init__(self, make: Callable[[], GradientTransformation]) -> None:
        self._make, transformation = make, make()
        self.has_hidden_state = bool(closure_variable(transformation.update, "dampening"))
        self._shared = None if self.has_hidden_state else transformation

    def __call__(self, order: Order = "second") -> GradientTransformation:
        """Return the transformation for one task.

        For order "first" the updates treat the parameters as constants (weight decay reads them): the derivative of K
        steps w.r.t. the initial parameters is then the identity.
        """
        transformation = self._shared or self._make()
        return (
            GradientTransformation(transformation.init, partial(_update_at_constants, transformation.update))
            if order == "first"
            else transformation
        )

    def __reduce__(self) -> Any:  # closures cannot be copied or pickled
        return InnerOptimizer, (self._make,)


def _update_at_constants(update: Callable[..., Any], gradients: Any, state: Any, *, params: Any, inplace: bool) -> Any:
    return update(gradients, state, params=detach_all(params), inplace=inplace)


def make_inner_optimizer(inner: Inner, lr: float) -> InnerOptimizer:
    """Create the `InnerOptimizer` of a learner from its options.

    Raises:
        OptionError: `inner` is an unknown name, is not a transformation, or is one with momentum and dampening.
            TorchOpt stores "first call" of the latter in a closure, which would make the second task differ from the
            first.
    """
    if isinstance(inner, str):
        if inner not in _BY_NAME:
            raise OptionError(
                f"`inner` must be one of {', '.join(_BY_NAME)} or a TorchOpt transformation; got {inner!r}."
            )
        return InnerOptimizer(partial(_BY_NAME[inner], lr))
    if isinstance(inner, GradientTransformation):
        if closure_variable(inner.update, "dampening"):
            raise OptionError(
                "`inner` with momentum and dampening must be given as a function, lambda: torchopt.sgd(...), "
                "so that each task starts with a fresh one."
            )
        return InnerOptimizer(lambda: inner)
    if callable(inner) and not isinstance(inner, type) and isinstance(inner(), GradientTransformation):
        return InnerOptimizer(inner)
    raise OptionError(
        f"`inner` must be a name, a TorchOpt transformation or a function that returns one; got {inner!r}."
    )


def check_recomputable(pipe: Pipeline, inner: InnerOptimizer) -> None:
    """Raise OptionError if an inner step could give a different result when it is run again."""
    if pipe.requirements.attaching:
        raise OptionError(
            "`recompute` runs the encoder again in the backward pass, but a homogenizer that is attached to it may act "
            "differently then. Remove one of them."
        )
    if inner.has_hidden_state:
        raise OptionError(
            "`recompute` runs inner steps again, but TorchOpt's momentum with dampening stores which step was the "
            "first. Remove one of them."
        )


def closure_variable(function: Any, name: str) -> Any:
    """Value of a variable in the closure of a function or, recursively, of the functions in it; None if absent."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    for variable, cell in zip(code.co_freevars if code else (), cells, strict=True):
        value = cell.cell_contents
        if variable == name:
            return value
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if callable(part) and (found := closure_variable(part, name)) is not None:
                return found
    return None
