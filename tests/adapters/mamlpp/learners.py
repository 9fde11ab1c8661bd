"""MAML++ as after some training, and with every part off."""

from __future__ import annotations

import torch

from gradhomog_adapters.mamlpp import MAMLPP
from tests.adapters.few_shot import networks

OFF = {"learn_rates": False, "step_norm": False, "multi_step_steps": 0}


def learner(homogenizers=None, **options):
    """With rates, scales and shifts that differ from tensor to tensor and step to step."""
    made = MAMLPP(*networks(True), homogenizers, **{"inner_lr": 0.1, "inner_steps": 3, **options})
    generator = torch.Generator().manual_seed(7)
    for name, parameter in made.named_parameters().items():
        if name.startswith("learner."):
            parameter.data *= 1 + torch.rand(parameter.shape, generator=generator, dtype=parameter.dtype)
    return made
