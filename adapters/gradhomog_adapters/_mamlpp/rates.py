"""Learned inner rates (LSLR): one for each adapted tensor and inner step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torchopt
from torch import Tensor, nn

from gradhomog_adapters._episodic.network import constants
from gradhomog_adapters._inner_loop.optimizer import Descent
from gradhomog_adapters._network.mirror import mirror


def rates(names: Sequence[str], inner_steps: int, start: float) -> nn.Module:
    """Parameters `<name>` `[inner_steps]`, all alike at first; in float64 until they are given the network's dtype."""
    return mirror({name: torch.full((max(inner_steps, 1),), start, dtype=torch.float64) for name in names})


def advance(
    descent: Descent, gradients: dict[str, Tensor], factors: Mapping[str, Tensor] | None, constant: bool
) -> Descent:
    """One inner step: the transformation's updates, times a factor for each tensor if there are any.

    With `constant` the updates do not depend on where the loop stands (weight decay would): first order means that the
    derivative of a step by the parameters before it is the identity.
    """
    seen = constants(descent.parameters) if constant else descent.parameters
    # inplace=False: TorchOpt's default writes into the parameters and cuts the graph in silence.
    updates, state = descent.transformation.update(gradients, descent.state, params=seen, inplace=False)
    if factors is not None:
        updates = {name: factors[name] * update for name, update in updates.items()}
    parameters = dict(torchopt.apply_updates(descent.parameters, updates, inplace=False))
    return Descent(descent.transformation, parameters, state)
