"""Networks of the few-shot literature by name, as pairs (encoder, head).

An encoder maps inputs `[n, channels, height, width]` to features `[n, features]`, a head maps features to outputs
`[n, outputs]`. With `flatten=False` the encoder of a network for images ends with its last feature map
`[n, maps, h, w]`, as RelationNet requires, and the head begins with the omitted layers, so that `head(encoder(x))` is
the same function of the same parameters. No layer works in place, because higher derivatives need the values that it
would overwrite.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from gradhomog import ConfigError


def convolution(
    inputs: int, outputs: int, kernel: int, *, stride: int = 1, padding: int = 0, bias: bool = False
) -> nn.Conv2d:
    """Return a square convolution with weights from N(0, 2 / (kernel² · outputs)) and a bias initialized as in PyTorch.

    He et al. 2015 ("Delving Deep into Rectifiers", eq. 14): gradients keep their variance in the backward pass through
    ReLU. The code of Chen et al. 2019 names fan-in and computes this fan-out; the code of Lee et al. 2019 computes the
    fan-out too (`kaiming_normal_(mode="fan_out", nonlinearity="leaky_relu")`; its default slope of 0 gives the formula
    of ReLU).
    """
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=bias)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / (kernel * kernel * outputs)))
    return layer


def split_network(
    body: Mapping[str, nn.Module], tail: Mapping[str, nn.Module], linear: nn.Linear, *, flatten: bool
) -> tuple[nn.Module, nn.Module]:
    """Return encoder and head. The tail, which turns maps into vectors, ends the encoder or begins the head."""
    if flatten:
        return nn.Sequential(OrderedDict({**body, **tail})), linear
    return nn.Sequential(OrderedDict(body)), nn.Sequential(OrderedDict({**tail, "linear": linear}))


def image_shape(name: str, input_shape: Sequence[int], smallest: int = 1) -> tuple[int, int]:
    """Return the channels and the side of square images.

    Raises:
        ConfigError: inputs are not square images, or so small that pooling reduces them to nothing.
    """
    if len(input_shape) != 3 or input_shape[1] != input_shape[2]:
        raise ConfigError(
            f"`network.name` {name} takes square images; the domains give inputs of shape {tuple(input_shape)}. "
            "Use mlp for vectors."
        )
    channels, size, _ = input_shape
    if size < smallest:
        raise ConfigError(
            f"{name} needs images of at least {smallest}×{smallest} pixels: pooling reduces smaller ones to nothing; "
            f"got {size}×{size}. Use larger images, or a resnet10 or resnet18."
        )
    return channels, size


def mlp(input_shape: Sequence[int], outputs: int, width: int) -> tuple[nn.Module, nn.Module]:
    """Two hidden layers with ReLU and a linear head, for vectors; Finn et al. 2017 use width 40 for sinusoids.

    Inputs `[n, *input_shape]` are flattened; features are `[n, width]`. Parameters with the head, for
    width 40, one input and one output: 1761. Initialization is that of PyTorch's linear layers, uniform within
    1/√inputs of 0; the code of Finn et al. draws weights from a truncated normal distribution with standard deviation
    0.01 and sets biases to 0.

    >>> import torch
    >>> encoder, head = mlp((1,), 1, 40)
    >>> head(encoder(torch.zeros(3, 1))).shape
    torch.Size([3, 1])
    """
    inputs = math.prod(input_shape)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return encoder, nn.Linear(width, outputs)


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
    return _plain_network("conv4", 4, input_shape, outputs, width, flatten)


def conv6(input_shape: Sequence[int], outputs: int, width: int, *, flatten: bool = True) -> tuple[nn.Module, nn.Module]:
    """conv4 followed by two blocks that do not pool (Chen et al. 2019): deeper, with the same number of features.

    Parameters of the encoder with 64 filters and 3 channels: 187 200. Arguments, initialization and errors are those
    of `conv4`.
    """
    return _plain_network("conv6", 6, input_shape, outputs, width, flatten)


def _plain_network(
    name: str, depth: int, input_shape: Sequence[int], outputs: int, width: int, flatten: bool
) -> tuple[nn.Module, nn.Module]:
    channels, side = image_shape(name, input_shape, smallest=16)
    layers: list[nn.Module] = []
    for index in range(depth):
        inputs = channels if index == 0 else width
        layers += [convolution(inputs, width, 3, padding=1, bias=True), nn.BatchNorm2d(width), nn.ReLU()]
        if index < POOLS:
            layers.append(nn.MaxPool2d(2))
    body = {str(index): layer for index, layer in enumerate(layers)}
    # The tail continues the numbering, so that an encoder is a plain sequence and its old checkpoints load.
    tail = {str(len(layers)): nn.Flatten()}
    return split_network(body, tail, nn.Linear(width * (side // 2**POOLS) ** 2, outputs), flatten=flatten)


class Block(nn.Module):
    """a(norm(conv(… a(norm(conv x)) …)) + shortcut x), with 3×3 convolutions (He et al. 2016, fig. 2).

    The first convolution has the stride; the shortcut is a projection if the shape changes.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int = 1,
        convolutions: int = 2,
        activation: Callable[[], nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        self.numbers = range(1, convolutions + 1)
        for number in self.numbers:
            sizes, step = ((inputs, outputs), stride) if number == 1 else ((outputs, outputs), 1)
            self.add_module(f"conv{number}", convolution(*sizes, 3, stride=step, padding=1))
            self.add_module(f"bn{number}", nn.BatchNorm2d(outputs))
            self.add_module(f"relu{number}", activation())
        self.downsample: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            self.downsample = nn.Sequential(convolution(inputs, outputs, 1, stride=stride), nn.BatchNorm2d(outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs
        for number in self.numbers:
            conv, norm, activation = (self.get_submodule(f"{kind}{number}") for kind in ("conv", "bn", "relu"))
            hidden = norm(conv(hidden))
            hidden = activation(hidden + self.downsample(inputs) if number == self.numbers[-1] else hidden)
        return hidden


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
    return _residual_network("resnet10", (1, 1, 1, 1), input_shape, outputs, width, flatten)


def resnet18(
    input_shape: Sequence[int], outputs: int, width: int, *, flatten: bool = True
) -> tuple[nn.Module, nn.Module]:
    """Two blocks in each of four stages (He et al. 2016, table 1); the rest is as in `resnet10`.

    Parameters of the encoder with width 64 and 3 channels: 11 176 512.
    """
    return _residual_network("resnet18", (2, 2, 2, 2), input_shape, outputs, width, flatten)


def _residual_network(
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
        body[f"layer{stage + 1}"] = nn.Sequential(first, *(Block(maps, maps) for _ in range(number - 1)))
        inputs = maps
    tail = {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    return split_network(body, tail, nn.Linear(inputs, outputs), flatten=flatten)


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
        block = Block(inputs, maps, convolutions=3, activation=lambda: nn.LeakyReLU(SLOPE))
        body[f"layer{stage}"] = nn.Sequential(OrderedDict({"0": block, "maxpool": nn.MaxPool2d(2)}))
        inputs = maps
    tail = {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    return split_network(body, tail, nn.Linear(inputs, outputs), flatten=flatten)
