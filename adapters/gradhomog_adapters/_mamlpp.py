"""The parts of MAML++: parameters and running statistics per inner step, weights of the losses, annealing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradhomog import OptionError, to_device
from gradhomog_adapters._gradients import Order
from gradhomog_adapters._network import Network, Parameters, buffer_module, learner_parameter, parameter_module
from gradhomog_adapters.few_shot import Support


def rates(names: Sequence[str], inner_steps: int, start: float) -> nn.Module:
    """Parameters `<name>` `[inner_steps]`, initially `start`, in float64 until converted to the network's dtype."""
    return parameter_module({name: torch.full((max(inner_steps, 1),), start, dtype=torch.float64) for name in names})


def step_parameter(extra_modules: nn.ModuleDict, parameters: Parameters, part: str, name: str, k: int) -> Tensor:
    """The entry of step k of a parameter `[inner_steps, ...]`; steps beyond the last use its entry."""
    entries = learner_parameter(extra_modules, parameters, part, name)
    return entries[max(min(k, len(entries) - 1), 0)]


def batch_norm_layers(network: Network) -> dict[str, _BatchNorm]:
    """Batch normalization layers, under each of their names."""
    return {name: module for name, module in network.modules().items() if isinstance(module, _BatchNorm)}


def affine_parameters(network: Network) -> dict[str, Tensor]:
    """The trainable scales and shifts of batch normalization."""
    affine_ids = {id(p) for layer in batch_norm_layers(network).values() for p in layer.parameters(recurse=False)}
    return {name: parameter for name, parameter in network.parameters().items() if id(parameter) in affine_ids}


def copies_by_step(parameters: Parameters, inner_steps: int) -> nn.Module:
    """Parameters `<name>` `[inner_steps, *]`, initially the given ones in every step."""
    return parameter_module({name: torch.stack([p] * max(inner_steps, 1)) for name, p in parameters.items()})


def statistics(network: Network, slots: int) -> nn.Module:
    """Buffers `<name>` `[slots, ...]`: `slots` copies of the layers' running statistics.

    Raises:
        OptionError: a layer has no running statistics.
    """
    found: dict[str, Tensor] = {}
    for name, layer in batch_norm_layers(network).items():
        if layer.running_mean is None:
            raise OptionError(
                f"`norm` 'running' needs layers with running statistics; `{name}`, a {type(layer).__name__}, has none "
                "(track_running_stats=False). Use 'batch' or 'support'."
            )
        for part, buffer in layer.named_buffers(recurse=False):
            found[f"{name}.{part}"] = torch.stack([buffer] * slots)
    return buffer_module(found)


class RunningStatistics:
    """Replaces the network's running statistics by those of a slot, within `read` or `record`."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._active: Mapping[str, Tensor] = {}

    def at_step(self, support: Support, slot: int) -> Support:
        """Support set with the buffers of a slot; they are views, which layers update while recording."""
        if not self._active:
            return support
        return replace(support, buffers={**support.buffers, **{n: b[slot] for n, b in self._active.items()}})

    @contextmanager
    def read(self, statistics: Mapping[str, Tensor]) -> Iterator[None]:
        """Context in which layers normalize with these statistics."""
        with self._activate(statistics, training=False):
            yield

    @contextmanager
    def record(self, statistics: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Context in which layers normalize with each batch and update a copy of `statistics` with their `momentum`."""
        found = {name: buffer.clone() for name, buffer in statistics.items()}
        with self._activate(found, training=True):
            yield found

    @contextmanager
    def _activate(self, statistics: Mapping[str, Tensor], training: bool) -> Iterator[None]:
        layers = list(dict.fromkeys(batch_norm_layers(self.network).values()))
        before = [(layer.training, layer.track_running_stats) for layer in layers]
        try:
            self._active = statistics
            for layer in layers:
                layer.training, layer.track_running_stats = training, True
            yield
        finally:
            self._active = {}
            for layer, (was, tracks) in zip(layers, before, strict=True):
                layer.training, layer.track_running_stats = was, tracks


# Minimum weight of a step before the last, in units of 1/K, until the annealing ends (the authors' code).
MIN_SHARE = 0.03


def loss_weights(inner_steps: int, done: int, until: int) -> list[float]:
    """Weights v_0 … v_{K−1} of L = Σ_k v_k L_Q(θ^{k+1}) after `done` meta-steps; their sum is one.

    With e = done/until: v_k = max(1 − e, 0.03)/K for k < K − 1, and the last weight is the rest; 1 if done ≥ until.

    Source: Antoniou et al. 2019, arXiv 1810.09502, section 4 (multi-step loss). The constants are those of the authors'
    code, in which e changes only between epochs.
    """
    if inner_steps == 0:
        return []
    if done >= until:
        return [0.0] * (inner_steps - 1) + [1.0]
    early = max(1 - done / until, MIN_SHARE) / inner_steps
    return [early] * (inner_steps - 1) + [1 - (inner_steps - 1) * early]


@dataclass(frozen=True)
class MetaStepSettings:
    """Settings of one meta-step according to the schedules: order of derivatives, and weights of the losses.

    Computed once per meta-step, because this synchronizes with the device.


    Attributes:
        order: order of the derivatives of inner steps.
        passes: the numbers of inner steps after which the query loss is evaluated, increasing; the last one is K.
        loss_weights: weight of each pass in the loss, `[passes]`; a tensor, so that compiled code reads new values.
    """

    order: Order
    passes: tuple[int, ...]
    loss_weights: Tensor

    @classmethod
    def of(
        cls, done: int, inner_steps: int, multi_step_steps: int, first_order_steps: int, like: Tensor
    ) -> MetaStepSettings:
        weights = {k + 1: v for k, v in enumerate(loss_weights(inner_steps, done, multi_step_steps)) if v} or {0: 1.0}
        order: Order = "first" if done < first_order_steps else "second"
        return cls(
            order, tuple(weights), to_device(torch.tensor(list(weights.values()), dtype=like.dtype), like.device)
        )


def _cosine_rate(initial: float, final: float, steps: int, done: Any) -> float:
    share = min(float(done) / steps, 1.0)
    return final + (initial - final) * (1 + math.cos(math.pi * share)) / 2


def cosine(initial: float, final: float, steps: int) -> Callable[[Any], float]:
    """Cosine schedule: final + (initial − final)(1 + cos(π · done/steps))/2 after `done` steps, then `final`.

    Also for TorchOpt's optimizers: `torchopt.Adam(parameters, lr=cosine(1e-3, 1e-5, 50_000))`.

    Raises:
        OptionError: `steps` is not positive.

    >>> rate = cosine(1.0, 0.0, 100)
    >>> [round(rate(done), 4) for done in (0, 50, 100, 200)]
    [1.0, 0.5, 0.0, 0.0]
    """
    if steps < 1:
        raise OptionError(f"`steps` must be at least 1; got {steps!r}.")
    return partial(_cosine_rate, initial, final, steps)


@contextmanager
def anneal_rate(outer: Any, done: int, steps: int, final: float) -> Iterator[None]:
    """Context for one step, with the optimizer's rates set by the cosine schedule; restored if the step raises.

    The initial rate of each group is its `initial_lr`, stored in the group and saved with it, as in PyTorch's
    schedulers.

    Raises:
        OptionError: `outer` is not an optimizer of PyTorch, whose rate could be set, or its rate is below `final`.
    """
    if not isinstance(outer, torch.optim.Optimizer):
        kind = f"{type(outer).__module__}.{type(outer).__qualname__}"
        raise OptionError(
            f"`anneal_steps` requires an optimizer of torch.optim; got a {kind}, whose rate cannot be set. For one of "
            "TorchOpt pass a schedule, lr=gradhomog_adapters.mamlpp.cosine(1e-3, 1e-5, 50_000), and "
            "leave `anneal_steps` at 0."
        )
    before = [(group, group["lr"], "initial_lr" in group) for group in outer.param_groups]
    try:
        for group in outer.param_groups:
            rate = group["lr"]
            initial = float(group.setdefault("initial_lr", rate.clone() if isinstance(rate, Tensor) else rate))
            if final > initial:
                raise OptionError(
                    f"`final_outer_lr` must not exceed the outer optimizer's rate, {initial:g}; got {final:g}."
                )
            annealed = cosine(initial, final, steps)(done)
            # A new tensor, so that the old one can be restored.
            group["lr"] = torch.full_like(rate, annealed) if isinstance(rate, Tensor) else annealed
        yield
    except BaseException:
        for group, rate, annealing in before:
            group["lr"] = rate
            if not annealing:
                group.pop("initial_lr", None)
        raise
