"""Networks of the few-shot literature by name, as pairs (encoder, head).

An encoder maps inputs `[n, channels, height, width]` to features `[n, features]`, a head maps features to outputs
`[n, outputs]`. With `flatten=False` the encoder of a network for images ends with its last feature map
`[n, maps, h, w]`, as RelationNet requires, and the head begins with the omitted layers, so that `head(encoder(x))` is
the same function of the same parameters. No layer works in place, because higher derivatives need the values that it
would overwrite.

Names:
    conv4: four convolutions.
    conv6: six convolutions.
    resnet10: one residual block of two convolutions per stage.
    resnet12: one residual block of three convolutions per stage, wide.
    resnet18: two residual blocks of two convolutions per stage.
    mlp: two hidden layers, for vectors.
"""

from gradhomog.experiments.models.convolutional import conv4, conv6
from gradhomog.experiments.models.dropblock import DropBlock
from gradhomog.experiments.models.lookup import NAMES, build
from gradhomog.experiments.models.perceptron import mlp
from gradhomog.experiments.models.residual import resnet10, resnet18
from gradhomog.experiments.models.residual12 import resnet12

__all__ = ["NAMES", "DropBlock", "build", "conv4", "conv6", "mlp", "resnet10", "resnet12", "resnet18"]
