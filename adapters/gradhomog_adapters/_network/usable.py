"""What a network must be to be used as a function of its parameters, told before the first step."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from gradhomog import OptionError


def check(encoder: nn.Module, head: nn.Module) -> None:
    """Raise for what cannot be called with other tensors in place of its parameters.

    Raises:
        OptionError: names the part of the network, and what to do.
    """
    for name, module in (("encoder", encoder), ("head", head)):
        for path, part in module.named_modules():
            where = f"`{name}`" if not path else f"`{name}.{path}`"
            kind = type(part).__name__
            if any(isinstance(p, UninitializedParameter) for p in part.parameters(recurse=False)):
                raise OptionError(
                    f"{where}, a {kind}, has parameters without a shape yet. Run the network once on an example first."
                )
            if isinstance(part, torch.jit.ScriptModule):
                raise OptionError(
                    f"{where} is compiled by TorchScript, whose parameters cannot be replaced. Give the module itself."
                )
            if isinstance(part, nn.DataParallel | nn.parallel.DistributedDataParallel):
                raise OptionError(f"{where} is a {kind}, which copies the network. Give the module that it wraps.")
            if isinstance(part, torch._dynamo.OptimizedModule):
                raise OptionError(
                    f"{where} is compiled: the inner loop differentiates twice, which compiled code cannot. Give the "
                    "module itself, and compile=True to the learner for a small network."
                )
            if any(isinstance(hook, WeightNorm | SpectralNorm) for hook in part._forward_pre_hooks.values()):
                raise OptionError(
                    f"{where}, a {kind}, is normalized by a hook that sets its weight aside. Use weight_norm or "
                    "spectral_norm of torch.nn.utils.parametrizations."
                )
