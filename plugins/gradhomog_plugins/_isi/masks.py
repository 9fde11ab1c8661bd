"""Masks for one call of a layer, drawn from the self-information of its input patches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradhomog_plugins._isi import drop
from gradhomog_plugins._isi.layers import Call, pool_log_s
from gradhomog_plugins._isi.self_information import log_kernel_sum, neighbourhood


@dataclass(frozen=True)
class MaskSampler:
    """The options of `ISI` that determine how masks are drawn."""

    rate: float
    temperature: float
    radius: int
    bandwidth: float
    neighbours: int | None
    sampling: str
    rescale: bool

    def drop_probabilities(self, call: Call, generator: torch.Generator) -> Tensor:
        """Return P, float32 `[n, *size of the output]`."""
        return 1 - self._keep(self._shares(call, call.inputs, generator))

    def draw(self, call: Call, inputs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw a mask `[n, channels, *size]` and count its zeros.

        The mask is 0 where an activation is dropped, and elsewhere the factor that compensates for dropping. `inputs`
        replace those of the call: under vmap they are the inputs of several tasks.
        """
        seed = int(torch.randint(2**62, (), generator=generator))  # drawn on the CPU, for a generator on any device
        local = torch.Generator(inputs.device).manual_seed(seed)
        shares = self._shares(call, inputs, generator)
        keep = self._keep(shares)
        mean = keep.flatten(1).mean(1)
        value = 1 / torch.where(mean > 0, mean, torch.ones_like(mean)) if self.rescale else torch.ones_like(mean)
        channels, dtype = call.output.shape[-shares.dim()], call.output.dtype
        if self.sampling == "bernoulli":
            return drop.bernoulli(keep, value, channels, dtype, local)
        draws = math.floor(self._draws(shares) + float(torch.rand((), generator=generator)))
        return drop.multinomial(shares, draws, value, channels, dtype, local)

    def _shares(self, call: Call, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Return the softmax of log S / T over positions, float32 `[n, *size of the output]`."""
        dims = len(call.size)
        if self.temperature == math.inf:
            size = call.output.shape[-dims:]
            return torch.full((len(inputs), *size), 1 / math.prod(size), device=inputs.device)
        shifts = None
        if self.neighbours is not None:
            all_shifts = neighbourhood(self.radius, dims)
            shifts = [
                all_shifts[place] for place in torch.randperm(len(all_shifts), generator=generator)[: self.neighbours]
            ]
        log_s = log_kernel_sum(inputs, call.patches, call.size, self.radius, self.bandwidth, shifts)
        return drop.position_probabilities(pool_log_s(log_s, call.layer), self.temperature)

    def _keep(self, shares: Tensor) -> Tensor:
        if self.sampling == "bernoulli":
            return drop.keep_probabilities(shares, self.rate)
        return drop.keep_probabilities_of_draws(shares, self._draws(shares))

    def _draws(self, shares: Tensor) -> float:
        return drop.draws_per_position(self.rate) * shares[0].numel()


class _WithoutGraph(torch.autograd.Function):
    """`compute(inputs)` for independent samples along the first dimension; under vmap the tasks are more samples."""

    @staticmethod
    def forward(inputs: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        return compute(inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, None]:
        return None, None

    @staticmethod
    def jvp(ctx: Any, *_: Tensor) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: Any, inputs: Tensor, compute: Callable[[Tensor], Tensor]) -> tuple[Tensor, int]:
        together = inputs.movedim(in_dims[0], 0)
        result: Tensor = _WithoutGraph.apply(together.flatten(0, 1), compute)  # type: ignore[no-untyped-call]
        return result.reshape(*together.shape[:2], *result.shape[1:]), 0


def compute_without_graph(compute: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Return `compute(inputs)` without a graph; the first dimension of both is that of independent samples."""
    result: Tensor = _WithoutGraph.apply(inputs, compute)  # type: ignore[no-untyped-call]
    return result
