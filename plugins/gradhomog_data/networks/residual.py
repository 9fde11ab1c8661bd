"""Residual networks with 10 and 18 layers, in blocks of two convolutions (He et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from gradhomog_data.networks.layers import convolution, image_shape, shortcut, split_network


def resnet10(
    input_shape: Sequence[int], outputs: int, width: int, *, flatten: bool = True
) -> tuple[nn.Module, nn.Module]:
    """One block in each of four stages, with 64, 128, 256 and 512 maps if `width` is 64; a linear head.

    The stages follow a 7×7 convolution of stride 2, batch normalization, ReLU and 3×3 max-pooling of stride 2; every
    stage except the first halves the side of the map. Features are the means of the last maps: 8 · width, 512 in the
    papers (Chen et al. 2019 and the cross-domain papers after it, at 224 px). Parameters of the encoder with width 64
    and 3 channels: 4 905 792. Convolutions start from N(0, 2/(kernel² · maps)), normalization from 1 and 0, as in Chen
    et al.; the head is initialized as in PyTorch.

    The mean over the whole map replaces the mean over 7×7 of Chen et al., which is the same at 224 px and fails for
    smaller images. Up to 32 px the last map is 1×1, and its batch normalization has one number per image and map.

    Parameters have the names of torchvision, so that its checkpoints of resnet18 load (without `fc`).

    Args:
        input_shape: channels, height and width of square images.
        outputs: outputs of the head, >= 1.
        width: maps of the first stage, >= 1; each further stage doubles them.
        flatten: False moves the mean to the head: the encoder returns `[n, 8 · width, h, w]`, 7×7 at 224 px.

    Raises:
        ConfigError: the images are not square.

    >>> import torch
    >>> encoder, head = resnet10((3, 32, 32), 5, 4)
    >>> head(encoder(torch.zeros(3, 3, 32, 32))).shape
    torch.Size([3, 5])
    """
    return _network("resnet10", (1, 1, 1, 1), input_shape, outputs, width, flatten)


def resnet18(
    input_shape: Sequence[int], outputs: int, width: int, *, flatten: bool = True
) -> tuple[nn.Module, nn.Module]:
    """Two blocks in each of four stages (He et al. 2016, table 1); the rest is as in `resnet10`.

    Parameters of the encoder with width 64 and 3 channels: 11 176 512.
    """
    return _network("resnet18", (2, 2, 2, 2), input_shape, outputs, width, flatten)


class Block(nn.Module):
    """relu(norm(conv(relu(norm(conv x)))) + shortcut x): He et al. 2016, fig. 2; a projection if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, outputs, 3, stride=stride, padding=1)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = convolution(outputs, outputs, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        same = inputs == outputs and stride == 1
        self.downsample = nn.Identity() if same else shortcut(inputs, outputs, stride=stride)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.relu1(self.bn1(self.conv1(inputs)))
        result: Tensor = self.relu2(self.bn2(self.conv2(hidden)) + self.downsample(inputs))
        return result


def _network(
    name: str, blocks: Sequence[int], input_shape: Sequence[int], outputs: int, width: int, flatten: bool
) -> tuple[nn.Module, nn.Module]:
    channels, _ = image_shape(name, input_shape)
    body: dict[str, nn.Module] = {
        "conv1": convolution(channels, width, 7, stride=2, padding=3),
        "bn1": nn.BatchNorm2d(width),
        "relu": nn.ReLU(),
        "maxpool": nn.MaxPool2d(3, stride=2, padding=1),
    }
    inputs = width
    for stage, number in enumerate(blocks):
        maps = width * 2**stage
        first = Block(inputs, maps, stride=1 if stage == 0 else 2)
        body[f"layer{stage + 1}"] = nn.Sequential(first, *(Block(maps, maps, stride=1) for _ in range(number - 1)))
        inputs = maps
    tail = {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    return split_network(body, tail, nn.Linear(inputs, outputs), flatten=flatten)
