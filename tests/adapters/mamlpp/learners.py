"""MAML++ learners for the tests, and the options that disable all parts."""

from __future__ import annotations

import torch

from gradhomog_adapters.mamlpp import MAMLPP
from tests.adapters.few_shot import networks

OFF = {"learn_rates": False, "step_norm": False, "multi_step_steps": 0}


def make_learner(homogenizers=None, **options):
    """Return a learner whose rates, scales and shifts differ between tensors and steps."""
    learner = MAMLPP(*networks(True), homogenizers, **{"inner_lr": 0.1, "inner_steps": 3, **options})
    generator = torch.Generator().manual_seed(7)
    for name, parameter in learner.named_parameters().items():
        if name.startswith("learner."):
            parameter.data *= 1 + torch.rand(parameter.shape, generator=generator, dtype=parameter.dtype)
    return learner
