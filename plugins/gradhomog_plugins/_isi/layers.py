"""Select layers of an encoder by name, and register hooks on their calls."""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog import OptionError
from gradhomog_plugins._isi.self_information import Patches
from gradhomog_plugins._layer_names import list_layers, matching_layers

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


@dataclass(frozen=True)
class Call:
    """A call of a layer. For a pooling, inputs, patches and size are those of the convolution called before it."""

    name: str
    layer: nn.Module
    inputs: Tensor  # [n, channels, *map]
    patches: Patches
    size: tuple[int, ...]
    output: Tensor


def select_layers(encoder: nn.Module, layers: int | str | Sequence[str]) -> dict[str, nn.Module]:
    """Return the convolutions and max-poolings that `layers` selects, by name: the first ones, or those of patterns.

    Raises:
        OptionError: there is no convolution, or a pattern matches no such layer.
    """
    modules = {name or type(module).__name__: module for name, module in encoder.named_modules()}
    supported = {
        name: module
        for name, module in modules.items()
        if isinstance(module, CONVOLUTIONS) or (isinstance(module, POOLS) and not module.return_indices)
    }
    if isinstance(layers, int):
        first = [name for name, module in supported.items() if isinstance(module, CONVOLUTIONS)][:layers]
        if not first:
            raise OptionError(
                f"`layers` counts convolutions, but the encoder has none; its layers: {list_layers(modules)}. "
                "Self-information requires patches: remove isi from the pipeline."
            )
        return {name: supported[name] for name in first}
    return matching_layers(layers, supported, "convolutions or max-poolings")


def register_hooks(
    encoder: nn.Module, chosen: Mapping[str, nn.Module], act: Callable[[Call], Tensor | None]
) -> ExitStack:
    """Call `act` after each call of a chosen layer; if it returns a tensor, this replaces the output of the layer.

    The calls of a layer in one pass are named `name`, `name#2`, and so on. The end of the returned context removes the
    hooks. If registering a hook raises, the hooks registered before it are removed.
    """
    runs: dict[str, int] = {}
    latest: list[Call] = []  # the convolution called last, for the pooling after it

    def reset(*_: Any) -> None:
        runs.clear()
        latest.clear()

    def remember(module: Any, args: Any, kwargs: Any, output: Tensor) -> None:
        latest[:] = [_convolution_call("", module, _input(args, kwargs), output)]

    def run(name: str, module: Any, args: Any, kwargs: Any, output: Tensor) -> Tensor | None:
        runs[name] = runs.get(name, 0) + 1
        name = name if runs[name] == 1 else f"{name}#{runs[name]}"
        if isinstance(module, CONVOLUTIONS):
            return act(_convolution_call(name, module, _input(args, kwargs), output))
        found = latest[0] if latest else None
        if found is None or found.size != _input(args, kwargs).shape[-len(found.size) :]:
            previous = (
                f"the output of the previous convolution has the size {list(found.size)}"
                if found
                else ("no convolution was called before it")
            )
            raise OptionError(
                f"the max-pooling {name!r} in `layers` must pool the output of a convolution; its input has "
                f"the size {list(_input(args, kwargs).shape[2:])}, but {previous}. "
                "Use the name of the convolution instead."
            )
        return act(Call(name, module, found.inputs, found.patches, found.size, output))

    with ExitStack() as registered:
        registered.callback(encoder.register_forward_pre_hook(reset).remove)
        if any(isinstance(module, POOLS) for module in chosen.values()):
            for module in encoder.modules():
                if isinstance(module, CONVOLUTIONS):
                    registered.callback(module.register_forward_hook(remember, with_kwargs=True).remove)
        for name, module in chosen.items():
            hook = functools.partial(run, name)
            registered.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        return registered.pop_all()


def pool_log_s(log_s: Tensor, layer: Any) -> Tensor:
    """Return log S unchanged for a convolution, and the smallest log S of each window for a max-pooling.

    The smallest log S of a window belongs to its most informative patch.
    """
    if not isinstance(layer, POOLS):
        return log_s
    pooling = getattr(torch.nn.functional, f"max_pool{log_s.dim() - 1}d")
    least: Tensor = -pooling(
        -log_s[:, None], layer.kernel_size, layer.stride, layer.padding, layer.dilation, ceil_mode=layer.ceil_mode
    )
    return least[:, 0]


def _input(args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor]) -> Tensor:
    return args[0] if args else next(iter(kwargs.values()))


def _convolution_call(name: str, layer: Any, inputs: Tensor, output: Tensor) -> Call:
    padding = layer.padding
    if isinstance(padding, str):  # if the sum is odd, "same" pads less before the map than after it
        same = [d * (k - 1) // 2 for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
        padding = same if padding == "same" else [0] * len(same)
    patches = Patches(layer.kernel_size, layer.stride, tuple(padding), layer.dilation)
    dims = len(layer.kernel_size)
    batch = inputs if inputs.dim() == dims + 2 else inputs[None]
    return Call(name, layer, batch, patches, tuple(output.shape[-dims:]), output)
