"""Parameters by inner step: learned rates (LSLR), and scales and shifts of batch normalization."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradhomog_adapters._network.functional import Network, Parameters, learned
from gradhomog_adapters._network.mirror import mirror


def rates(names: Sequence[str], inner_steps: int, start: float) -> nn.Module:
    """Parameters `<name>` `[inner_steps]`, all alike at first; in float64 until they are given the network's dtype."""
    return mirror({name: torch.full((max(inner_steps, 1),), start, dtype=torch.float64) for name in names})


def last_known(k: int, inner_steps: int) -> int:
    """The step whose parameters step k uses: steps beyond those of training use the last ones."""
    return max(min(k, inner_steps - 1), 0)


def normalizations(network: Network) -> dict[str, _BatchNorm]:
    """The layers by every name that they have."""
    return {name: module for name, module in network.modules().items() if isinstance(module, _BatchNorm)}


def affine_names(network: Network) -> list[str]:
    """The scales and shifts among the parameters that are learnt."""
    own = {id(p) for layer in normalizations(network).values() for p in layer.parameters(recurse=False)}
    return [name for name, parameter in network.parameters().items() if id(parameter) in own]


def affine(network: Network, names: Sequence[str], inner_steps: int) -> nn.Module:
    """Parameters `<name>` `[inner_steps, channels]`, at first those of the layer in every step."""
    given, steps = network.parameters(), max(inner_steps, 1)
    return mirror({name: torch.stack([given[name]] * steps) for name in names})


class ByStep:
    """The rates, scales and shifts of an inner step, among all that is learnt; steps beyond K have those of the last.

    Args:
        own: the learner's modules `rates` and `norm`, `[K, ...]` by the names of the parameters that they go with.
        network: whose batch normalizations have scales and shifts by step.
        inner_steps: K.
        norm: whether they have.
    """

    def __init__(self, own: nn.ModuleDict, network: Network, inner_steps: int, norm: bool) -> None:
        self.own, self.inner_steps = own, inner_steps
        given = network.parameters()
        self._layers = {name: given[name] for name in affine_names(network)} if norm else {}

    @property
    def affine_names(self) -> Sequence[str]:
        """Scales and shifts that there are K of, whatever has been frozen since."""
        return list(self._layers)

    def rates(self, meta: Parameters, names: Sequence[str], k: int) -> dict[str, Tensor]:
        """α_{l,k} for each name l."""
        return {name: self._look_up(meta, "rates", name, k) for name in names}

    def affine(self, meta: Parameters, k: int) -> dict[str, Tensor]:
        """γ_k and β_k; those of a layer that is frozen are its own."""
        live = [name for name, parameter in self._layers.items() if parameter.requires_grad]
        return {name: self._look_up(meta, "norm", name, k) for name in live}

    def without_replaced(self, named: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Of a layer's scale and the K in its place, only these; of a frozen layer neither is learnt."""
        out = {name if name in named else f"learner.norm.{name}" for name in self._layers}
        return {name: parameter for name, parameter in named.items() if name not in out}

    def _look_up(self, meta: Parameters, part: str, name: str, k: int) -> Tensor:
        return learned(self.own, meta, part, name)[last_known(k, self.inner_steps)]
