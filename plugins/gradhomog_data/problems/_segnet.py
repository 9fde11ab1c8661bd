"""SegNet, an encoder-decoder for dense prediction, with hard sharing or with the attention of MTAN.

Sources: SegNet: Badrinarayanan, Kendall & Cipolla 2017 (arXiv 1511.00561). MTAN: Liu, Johns & Davison 2019 (arXiv
1803.10704), figure 2 and equations 1 to 3. The number and sizes of layers are those of MTAN's code, which CAGrad,
Nash-MTL, FAMO and FairGrad use: per level one convolution that changes the number of maps, and one (two in the three
coarsest levels) that does not; the decoder ends one level above the input's number of maps.

Deviations from that code: 1. no layer works in place; 2. the attention of a task is task-specific: `gradhomog.backward`
gives it the gradient of the task's loss. Nash-MTL, FAMO and FairGrad count it among the shared parameters, where it
adds to the norms of the rows, but not to their inner products.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d, max_unpool2d

from gradhomog_data.problems._benchmark import SharedNetwork


def convolution(inputs: int, outputs: int, kernel: int) -> nn.Conv2d:
    """Return a convolution of the same height and width; weights as Glorot & Bengio 2010 (normal), biases zero."""
    layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
    nn.init.xavier_normal_(layer.weight)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def layer(inputs: int, outputs: int, kernel: int = 3, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return a convolution, batch normalization and activation."""
    return nn.Sequential(convolution(inputs, outputs, kernel), nn.BatchNorm2d(outputs), activation())


class Maps(NamedTuple):
    """The maps of SegNet that attention reads, from fine to coarse.

    Attributes:
        encoder: u and p of each level: after the first convolution and after the last one, before pooling.
        decoder: of each level, after unpooling and after the last convolution.
    """

    encoder: list[tuple[Tensor, Tensor]]
    decoder: list[tuple[Tensor, Tensor]]


class SegNet(nn.Module):
    """An encoder and a decoder of five levels; max-pooling and unpooling at the positions of the maxima.

    Inputs `[n, 3, height, width]`, height and width multiples of 32; features `[n, width, height, width]`. For width
    64: 24 943 296 parameters.

    Args:
        width: maps of the finest level, >= 1; the others have 2, 4, 8 and 8 times as many.

    >>> SegNet(2)(torch.zeros(2, 3, 32, 64)).shape
    torch.Size([2, 2, 32, 64])
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.sizes = [width * factor for factor in (1, 2, 4, 8, 8)]
        self.decoded = [self.sizes[0], *self.sizes[:-1]]
        self.encoder = nn.ModuleList(map(_level, range(5), [3, *self.sizes], self.sizes))
        self.decoder = nn.ModuleList(map(_level, range(5), self.sizes, self.decoded))

    def maps(self, images: Tensor) -> Maps:
        """Return the maps of all levels."""
        maps, encoder, indices, decoder = images, [], [], []
        for level in self.encoder:
            before = level.get_submodule("first")(maps)
            after = level.get_submodule("last")(before)
            maps, positions = max_pool2d(after, 2, return_indices=True)
            encoder.append((before, after))
            indices.append(positions)
        for level, positions in zip(reversed(self.decoder), reversed(indices), strict=True):
            unpooled = max_unpool2d(maps, positions, [2, 2])
            maps = level(unpooled)
            decoder.append((unpooled, maps))
        return Maps(encoder, decoder[::-1])

    def forward(self, images: Tensor) -> Any:
        return self.maps(images).decoder[0][1]


def _level(level: int, inputs: int, outputs: int) -> nn.Sequential:
    """Return the first convolution of a level, and the others."""
    others = [layer(outputs, outputs) for _ in range(1 if level < 2 else 2)]
    return nn.Sequential(OrderedDict(first=layer(inputs, outputs), last=nn.Sequential(*others)))


class SegNetMaps(SegNet):
    """SegNet that returns its `Maps`, with the convolutions f of attended maps, which all tasks share.

    Its first parameters are those of `SegNet`, initialized from the same random numbers.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width)
        following = [*self.sizes[1:], self.sizes[-1]]
        self.attended_encoder = nn.ModuleList(map(layer, self.sizes, following))
        self.attended_decoder = nn.ModuleList(map(layer, self.sizes, self.decoded))

    def forward(self, images: Tensor) -> Any:
        return self.maps(images)


class Attention(nn.Module):
    """The attention masks of one task, and its head.

    Mask of level j: a_j = h_j(g_j([u_j; f_{j-1}(â_{j-1})])), attended maps: â_j = a_j ⊙ p_j, with g a 1×1 convolution
    and ReLU, h a 1×1 convolution and sigmoid, each with batch normalization, and u_j alone in the first level.
    In the decoder, â is upsampled (bilinear) before f, and u_j are the unpooled maps.
    """

    def __init__(self, shared: SegNetMaps, head: nn.Module) -> None:
        super().__init__()
        sizes, decoded = shared.sizes, shared.decoded
        self.encoder = nn.ModuleList(_mask(size * min(level + 1, 2), size) for level, size in enumerate(sizes))
        self.decoder = nn.ModuleList(_mask(size + output, output) for size, output in zip(sizes, decoded, strict=True))
        self.head = head

    def forward(self, maps: Maps, shared: SegNetMaps) -> Any:
        found = maps.encoder[0][0][:, :0]  # no maps before the first level
        for mask, convolved, (first, last) in zip(self.encoder, shared.attended_encoder, maps.encoder, strict=True):
            found = max_pool2d(convolved(mask(torch.cat([first, found], 1)) * last), 2)
        levels = [*zip(self.decoder, shared.attended_decoder, maps.decoder, strict=True)]
        for mask, convolved, (unpooled, last) in reversed(levels):
            found = convolved(interpolate(found, scale_factor=2, mode="bilinear", align_corners=True))
            found = mask(torch.cat([unpooled, found], 1)) * last
        return self.head(found)


def _mask(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(layer(inputs, outputs, kernel=1), layer(outputs, outputs, kernel=1, activation=nn.Sigmoid))


class AttentionNetwork(SharedNetwork):
    """MTAN: SegNet and the convolutions of attended maps are shared; each task has its `Attention`."""

    def output(self, task: str, features: Maps) -> Any:
        return self.heads[task](features, self.shared)


def dense_network(architecture: str, width: int, outputs: Mapping[str, int]) -> SharedNetwork:
    """Return SegNet with a head for each task (`"segnet"`), or with its attention (`"mtan"`).

    A head is a 3×3 convolution and a 1×1 convolution without a nonlinearity between them, as in MTAN's code. With the
    same random numbers, heads and the layers of SegNet are the same for both.

    Args:
        width: as in `SegNet`.
        outputs: number of output maps of each task.
    """
    heads = {
        task: nn.Sequential(convolution(width, width, 3), convolution(width, count, 1))
        for task, count in outputs.items()
    }
    if architecture == "segnet":
        return SharedNetwork(SegNet(width), heads)
    shared = SegNetMaps(width)
    return AttentionNetwork(shared, {task: Attention(shared, head) for task, head in heads.items()})
