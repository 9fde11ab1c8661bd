"""The solution of a proximal inner problem as a function of its initialisation, by TorchOpt's `custom_root`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torchopt
from torch import Tensor

from gradhomog_adapters._episodic.calculus import ByTransforms, Loss

Arrive = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def differentiable(loss: Loss, solution: dict[str, Tensor], proximal: float, damping: float, cg_steps: int) -> Arrive:
    """From all meta-parameters to those that the query set meets: the solution in place of the adapted ones.

    Its value is the solution given; backwards it is differentiated by ∇L_S(θ*, ω) + λ(θ* − θ) = 0, once and no more:
    second derivatives would be wrong in silence.

    Args:
        loss: L_S of all parameters.
        solution: θ*, the adapted ones, constants.
        proximal, damping, cg_steps: λ, δ in (1 + δ)λI + H, and a number of iterations.
    """
    adapted = list(solution)

    def arrive(meta: dict[str, Tensor]) -> dict[str, Tensor]:
        names = list(meta)

        # Tuples: it takes no dicts.
        def optimality(found: tuple[Tensor, ...], given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            fixed, point = dict(zip(names, given, strict=True)), dict(zip(adapted, found, strict=True))
            slopes = ByTransforms().gradient(lambda moved: loss({**fixed, **moved}), point, True)
            return tuple(slopes[name] + proximal * (point[name] - fixed[name]) for name in adapted)

        def solved(initial: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(solution.values())

        # Without `maxiter` it takes none at all for a 0-d parameter; its tolerance of 1e-5 is coarser than rounding.
        epsilon = max(torch.finfo(tensor.dtype).eps for tensor in solution.values())
        solve = torchopt.linear_solve.solve_cg(maxiter=cg_steps, ridge=proximal * damping, rtol=epsilon)
        root = torchopt.diff.implicit.custom_root(optimality, argnums=1, solve=solve)(solved)
        return {**meta, **dict(zip(adapted, root(None, tuple(meta.values())), strict=True))}

    return arrive


@contextmanager
def deprecations_unheard() -> Iterator[None]:
    """Within the context it is not told, twice per backward pass, that TorchOpt calls functorch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*functorch", category=FutureWarning)
        yield
