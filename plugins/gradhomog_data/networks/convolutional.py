"""Plain convolutional networks: blocks of convolution, batch normalization, ReLU and max-pooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from gradhomog_data.networks.layers import convolution, image_shape, split_network

POOLS = 4
"""Number of blocks that pool, the first ones."""


def conv4(input_shape: Sequence[int], outputs: int, width: int, *, flatten: bool = True) -> tuple[nn.Module, nn.Module]:
    """Four blocks of 3×3 convolution, batch normalization, ReLU and 2×2 max-pooling; a linear head.

    Features: width · (size/16)², rounded down: 64 for 28 px and 1600 for 84 px with the 64 filters of the papers
    (Vinyals et al. 2016). Finn et al. 2017 use 32 filters for miniImageNet. Parameters of the encoder with 64 filters
    and 3 channels: 113 088. Initialization of Chen et al. 2019 ("A Closer Look"): convolutions N(0, 2/(9 · width)),
    biases as in PyTorch. It differs from 1. Finn et al., who use Xavier initialization for convolutions and 0 for
    biases; 2. the MAML of Chen et al., where the bias of the head starts at 0: here the head is initialized as in
    PyTorch.

    Args:
        input_shape: channels, height and width of square images of at least 16 pixels.
        outputs: outputs of the head, >= 1.
        width: filters of every block, >= 1.
        flatten: False moves the flattening to the head: the encoder returns `[n, width, h, w]`.

    Raises:
        ConfigError: the images are not square, or too small.

    >>> import torch
    >>> encoder, head = conv4((1, 28, 28), 5, 64)
    >>> head(encoder(torch.zeros(3, 1, 28, 28))).shape
    torch.Size([3, 5])
    """
    return _network("conv4", 4, input_shape, outputs, width, flatten)


def conv6(input_shape: Sequence[int], outputs: int, width: int, *, flatten: bool = True) -> tuple[nn.Module, nn.Module]:
    """conv4 followed by two blocks that do not pool (Chen et al. 2019): deeper, with the same number of features.

    Parameters of the encoder with 64 filters and 3 channels: 187 200. Arguments, initialization and errors are those
    of `conv4`.
    """
    return _network("conv6", 6, input_shape, outputs, width, flatten)


def _network(
    name: str, depth: int, input_shape: Sequence[int], outputs: int, width: int, flatten: bool
) -> tuple[nn.Module, nn.Module]:
    channels, side = image_shape(name, input_shape, smallest=16)
    layers = list(_layers(depth, channels, width))
    body = {str(index): layer for index, layer in enumerate(layers)}
    # The tail continues the numbering, so that an encoder is a plain sequence and its old checkpoints load.
    tail = {str(len(layers)): nn.Flatten()}
    return split_network(body, tail, nn.Linear(width * (side // 2**POOLS) ** 2, outputs), flatten=flatten)


def _layers(depth: int, channels: int, width: int) -> Iterator[nn.Module]:
    for index in range(depth):
        inputs = channels if index == 0 else width
        yield convolution(inputs, width, 3, padding=1, bias=True)
        yield nn.BatchNorm2d(width)
        yield nn.ReLU()
        if index < POOLS:
            yield nn.MaxPool2d(2)
