"""Parameters per inner step: learned rates (LSLR), and scales and shifts of batch normalization."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradhomog_adapters._network import Network, Parameters, learner_parameter, parameter_module


def rates(names: Sequence[str], inner_steps: int, start: float) -> nn.Module:
    """Parameters `<name>` `[inner_steps]`, initially `start`, in float64 until converted to the network's dtype."""
    return parameter_module({name: torch.full((max(inner_steps, 1),), start, dtype=torch.float64) for name in names})


def clamp_step(k: int, inner_steps: int) -> int:
    """Index of the parameters of step k: further steps than in training use those of the last one."""
    return max(min(k, inner_steps - 1), 0)


def batch_norm_layers(network: Network) -> dict[str, _BatchNorm]:
    """Batch normalization layers, under each of their names."""
    return {name: module for name, module in network.modules().items() if isinstance(module, _BatchNorm)}


def affine_names(network: Network) -> list[str]:
    """Names of the trainable scales and shifts of batch normalization."""
    affine_ids = {id(p) for layer in batch_norm_layers(network).values() for p in layer.parameters(recurse=False)}
    return [name for name, parameter in network.parameters().items() if id(parameter) in affine_ids]


def affine(network: Network, names: Sequence[str], inner_steps: int) -> nn.Module:
    """Parameters `<name>` `[inner_steps, channels]`, initially those of the layer in every step."""
    parameters, steps = network.parameters(), max(inner_steps, 1)
    return parameter_module({name: torch.stack([parameters[name]] * steps) for name in names})


class StepParameters:
    """Rates, scales and shifts of each inner step. Steps beyond K use those of the last one.

    Args:
        extra_modules: the extra modules of the learner, with `rates` and `norm`: tensors `[K, ...]` by parameter name.
        network: the network with the batch normalization layers.
        inner_steps: K.
        norm: true if scales and shifts are learned per step.
    """

    def __init__(self, extra_modules: nn.ModuleDict, network: Network, inner_steps: int, norm: bool) -> None:
        self.extra_modules, self.inner_steps = extra_modules, inner_steps
        parameters = network.parameters()
        self._layers = {name: parameters[name] for name in affine_names(network)} if norm else {}

    @property
    def affine_names(self) -> Sequence[str]:
        """Names of the scales and shifts that are learned per step, also those that have been frozen."""
        return list(self._layers)

    def rates(self, meta: Parameters, names: Sequence[str], k: int) -> dict[str, Tensor]:
        """α_{l,k} for each name l."""
        return {name: self._look_up(meta, "rates", name, k) for name in names}

    def affine(self, meta: Parameters, k: int) -> dict[str, Tensor]:
        """γ_k and β_k; frozen layers are omitted and use their own parameters."""
        live = [name for name, parameter in self._layers.items() if parameter.requires_grad]
        return {name: self._look_up(meta, "norm", name, k) for name in live}

    def trained_parameters(self, named: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained.

        For batch normalization layers with parameters per step, exclude the original scale and shift; for frozen
        layers, exclude the parameters per step.
        """
        excluded = {name if name in named else f"learner.norm.{name}" for name in self._layers}
        return {name: parameter for name, parameter in named.items() if name not in excluded}

    def _look_up(self, meta: Parameters, part: str, name: str, k: int) -> Tensor:
        return learner_parameter(self.extra_modules, meta, part, name)[clamp_step(k, self.inner_steps)]
