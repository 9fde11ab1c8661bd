"""The residual network with 12 layers for few-shot learning: wide blocks of three convolutions with LeakyReLU."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from gradhomog_data.networks.layers import convolution, image_shape, shortcut, split_network

SLOPE = 0.1
"""Slope of LeakyReLU below 0, as in the code of Lee et al. 2019."""


def resnet12(
    input_shape: Sequence[int], outputs: int, width: int, *, flatten: bool = True
) -> tuple[nn.Module, nn.Module]:
    """Four blocks of three 3×3 convolutions, with 64, 160, 320 and 640 maps if `width` is 64; a linear head.

    Layout of Oreshkin et al. 2018 (TADAM), with the widths, the LeakyReLU(0.1) and the 2×2 max-pooling after every
    block of Lee et al. 2019 (MetaOptNet). Features are the means of the last maps: 10 · width, 640 in the papers.
    Parameters of the encoder with width 64 and 3 channels: 12 424 320. A block from i to o maps has
    10 i o + 18 o² + 8 o.
    Convolutions start from N(0, 2/(kernel² · maps)), normalization from 1 and 0; the head is initialized as in PyTorch.

    It differs from the code of Lee et al.: 1. their encoder returns the last map of 84 px as 16 000 features
    (`avg_pool=False`); `torch.nn.Flatten()` after this encoder with `flatten=False` gives the same; 2. no dropout and
    no DropBlock, whose rate grows there over 40 000 forward passes. Parameters have the names of their code.

    Args:
        input_shape: channels, height and width of square images of at least 16 pixels.
        outputs: outputs of the head, >= 1.
        width: maps of the first block, >= 1; the others have 2.5, 5 and 10 times as many, rounded down.
        flatten: False moves the mean to the head: the encoder returns `[n, 10 · width, h, w]`, 5×5 at 84 px.

    Raises:
        ConfigError: the images are not square, or too small.

    >>> import torch
    >>> encoder, head = resnet12((3, 32, 32), 5, 4)
    >>> head(encoder(torch.zeros(3, 3, 32, 32))).shape
    torch.Size([3, 5])
    """
    channels, _ = image_shape("resnet12", input_shape, smallest=16)
    body: dict[str, nn.Module] = {}
    inputs = channels
    for stage, maps in enumerate((width, 5 * width // 2, 5 * width, 10 * width), start=1):
        body[f"layer{stage}"] = nn.Sequential(Block(inputs, maps))
        inputs = maps
    tail = {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    return split_network(body, tail, nn.Linear(inputs, outputs), flatten=flatten)


class Block(nn.Module):
    """Three convolutions with normalization plus a projection of the input; LeakyReLU and max-pooling."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, outputs, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.LeakyReLU(SLOPE)
        self.conv2 = convolution(outputs, outputs, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.LeakyReLU(SLOPE)
        self.conv3 = convolution(outputs, outputs, 3, padding=1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu3 = nn.LeakyReLU(SLOPE)
        self.maxpool = nn.MaxPool2d(2)
        self.downsample = shortcut(inputs, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.relu1(self.bn1(self.conv1(inputs)))
        hidden = self.relu2(self.bn2(self.conv2(hidden)))
        hidden = self.relu3(self.bn3(self.conv3(hidden)) + self.downsample(inputs))
        result: Tensor = self.maxpool(hidden)
        return result
