"""Validate that a network can be called as a function of its parameters."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from gradhomog import OptionError


def check_supported(encoder: nn.Module, head: nn.Module) -> None:
    """Raise if a module cannot be called with other tensors in place of its parameters.

    Raises:
        OptionError: with the name of the module and the fix.
    """
    for name, module in (("encoder", encoder), ("head", head)):
        for path, part in module.named_modules():
            where = f"`{name}`" if not path else f"`{name}.{path}`"
            kind = type(part).__name__
            if any(isinstance(p, UninitializedParameter) for p in part.parameters(recurse=False)):
                raise OptionError(
                    f"{where}, a {kind}, has uninitialized parameters. Run the network once on an example first."
                )
            if isinstance(part, torch.jit.ScriptModule):
                raise OptionError(
                    f"{where} is compiled by TorchScript, with fixed parameters. Pass the original module."
                )
            if isinstance(part, nn.DataParallel | nn.parallel.DistributedDataParallel):
                raise OptionError(f"{where} is a {kind}, which copies the network. Pass the module that it wraps.")
            if isinstance(part, torch._dynamo.OptimizedModule) or part._compiled_call_impl is not None:
                raise OptionError(
                    f"{where} is compiled, but the inner loop needs second derivatives, which compiled code lacks. "
                    "Pass the original module, and for a small network pass compile=True to the learner."
                )
            if any(isinstance(hook, WeightNorm | SpectralNorm) for hook in part._forward_pre_hooks.values()):
                raise OptionError(
                    f"{where}, a {kind}, is normalized by a hook that replaces its weight. Use weight_norm or "
                    "spectral_norm of torch.nn.utils.parametrizations."
                )
