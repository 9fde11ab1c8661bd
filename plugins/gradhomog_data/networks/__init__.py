"""Networks of the few-shot literature by name, as pairs (encoder, head).

An encoder maps inputs `[n, channels, height, width]` to features `[n, features]`, a head maps features to outputs
`[n, outputs]`. With `flatten=False` the encoder of a network for images ends with its last feature map
`[n, maps, h, w]`, as RelationNet requires, and the head begins with the omitted layers, so that `head(encoder(x))` is
the same function of the same parameters. No layer works in place, because higher derivatives need the values that it
would overwrite.
"""

from gradhomog import NetworkSpec, hookimpl
from gradhomog_data.networks.convolutional import conv4, conv6
from gradhomog_data.networks.perceptron import mlp
from gradhomog_data.networks.residual import resnet10, resnet18
from gradhomog_data.networks.residual12 import resnet12

__all__ = ["conv4", "conv6", "gradhomog_network", "mlp", "resnet10", "resnet12", "resnet18"]

SPECS = {
    "conv4": NetworkSpec(conv4, "four convolutions", "Vinyals et al. 2016, arXiv:1606.04080"),
    "conv6": NetworkSpec(conv6, "six convolutions", "Chen et al. 2019, arXiv:1904.04232"),
    "resnet10": NetworkSpec(
        resnet10, "one residual block of two convolutions per stage", "Chen et al. 2019, arXiv:1904.04232"
    ),
    "resnet12": NetworkSpec(
        resnet12, "one residual block of three convolutions per stage, wide", "Lee et al. 2019, arXiv:1904.03758"
    ),
    "resnet18": NetworkSpec(
        resnet18, "two residual blocks of two convolutions per stage", "He et al. 2016, arXiv:1512.03385"
    ),
    "mlp": NetworkSpec(mlp, "two hidden layers, for vectors", "Finn et al. 2017, arXiv:1703.03400", maps=False),
}


@hookimpl
def gradhomog_network(name: str) -> NetworkSpec:
    return SPECS[name]
