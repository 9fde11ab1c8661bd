"""The way back through an inner loop, step by step: memory does not grow with the number of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torchopt
from torch import Tensor

from gradhomog import OptionError
from gradhomog_adapters._episodic.calculus import OnGraph
from gradhomog_adapters._episodic.learner import Episodic
from gradhomog_adapters._inner_loop.optimizer import Descent, InnerOptimizer

Advance = Callable[[Descent, dict[str, Tensor], bool], Descent]
"""One inner step as a function of where the loop stands and of the parameters that it does not change; with its graph,
if asked for."""


class Sweep:
    """An inner loop that keeps where it stood before each step, but no graph.

    Forward: d_{k+1} = step(d_k, ω), ω the parameters that the loop does not change. Back: from the cotangents of d_K,
    for k = K−1 … 0 the graph of one step is built, pulled through, and dropped:
    (d̄_k, ω̄) ← (∂step/∂d_k ᵀ d̄_{k+1}, ω̄ + ∂step/∂ω ᵀ d̄_{k+1}).
    The derivatives are those of the whole graph up to rounding. Random numbers are drawn alike both times.

    Cost: one more forward and backward pass for each step; memory: K copies of the adapted parameters and optimizer
    state, and the graph of one step.
    """

    def __init__(self, descent: Descent, others: dict[str, Tensor], steps: int, advance: Advance) -> None:
        self.others, self.advance = OnGraph().leaf(others), advance
        self._before: list[tuple[Descent, list[Tensor]]] = []
        self.end = descent.at(OnGraph().leaf(descent.parameters))
        for _ in range(steps):
            self._before.append((self.end, _random_states(self._example)))
            stepped = advance(self.end, self.others, False)
            self.end = stepped.at(OnGraph().leaf(stepped.parameters))

    @property
    def _example(self) -> Tensor:
        return next(iter(self.end.parameters.values()))

    def back(self, cotangents: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """From derivatives by the adapted parameters to those by the parameters before the loop, and by the others."""
        by_state: list[Tensor] = []
        by_others = {name: torch.zeros_like(tensor) for name, tensor in self.others.items()}
        for before, random in reversed(self._before):
            here, state = _with_leaves(before)
            with _drawing(random, self._example):
                there = self.advance(here, self.others, True)
            ends = [*there.parameters.values(), *_floating(there.state)]
            pulling: list[Tensor | None] = [cotangents[name] for name in there.parameters]
            pulling += by_state or [None] * (len(ends) - len(pulling))
            pairs = [(end, c) for end, c in zip(ends, pulling, strict=True) if c is not None and end.requires_grad]
            starts = [*here.parameters.values(), *state, *self.others.values()]
            found = torch.autograd.grad([end for end, _ in pairs], starts, [c for _, c in pairs], allow_unused=True)
            whole = [torch.zeros_like(s) if g is None else g for s, g in zip(starts, found, strict=True)]
            count = len(here.parameters)
            cotangents = dict(zip(here.parameters, whole[:count], strict=True))
            by_state = whole[count : count + len(state)]
            for name, more in zip(by_others, whole[count + len(state) :], strict=True):
                by_others[name] += more
        return cotangents, by_others


def check_sweepable(learner: Episodic, inner: InnerOptimizer) -> None:
    """Raise OptionError for what does not do the same when it is run again."""
    learner.loop_only("`recompute` works on")
    if any(member.homogenizer.overrides("attach") for member in learner.homogenizers.members):
        raise OptionError(
            "`recompute` runs the encoder again on the way back, but a homogenizer that is attached to it may act "
            "otherwise then. Leave one of them out."
        )
    if inner.remembers:
        raise OptionError(
            "`recompute` runs inner steps again, but TorchOpt's momentum with dampening remembers which was the first. "
            "Leave one of them out."
        )


def _floating(state: Any) -> list[Tensor]:
    leaves: list[Any] = torchopt.pytree.tree_leaves(state)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _with_leaves(descent: Descent) -> tuple[Descent, list[Tensor]]:
    """The same place, its parameters and the floating tensors of its state as new variables."""
    variables: list[Tensor] = []

    def variable(leaf: object) -> object:
        if not (isinstance(leaf, Tensor) and leaf.is_floating_point()):
            return leaf
        variables.append(leaf.detach().requires_grad_())
        return variables[-1]

    state = torchopt.pytree.tree_map(variable, descent.state)
    return Descent(descent.transformation, OnGraph().leaf(descent.parameters), state), variables


def _random_states(like: Tensor) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(like.device)] if like.is_cuda else states


@contextmanager
def _drawing(states: list[Tensor], like: Tensor) -> Iterator[None]:
    """Within the context the global generators are in earlier states, and afterwards as they were before."""
    with torch.random.fork_rng([like.device] if like.is_cuda else []):
        torch.set_rng_state(states[0])
        if like.is_cuda:
            torch.cuda.set_rng_state(states[1], like.device)
        yield
