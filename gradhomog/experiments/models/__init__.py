"""The networks of the few-shot literature, by name, as (encoder, head).

An encoder maps inputs `[n, channels, height, width]` to features `[n, features]`, a head maps features to outputs
`[n, outputs]`. With `flatten=False` the encoder of a network for images ends with its last map `[n, maps, h, w]`, as
RelationNet needs it, and the head begins with what was left out, so that `head(encoder(x))` stays the same function of
the same parameters. No layer works in place: derivatives of derivatives need what it would overwrite.

Names:
    conv4: four convolutions.
    conv6: six convolutions.
    resnet10: stages of one residual block of two convolutions.
    resnet12: stages of one residual block of three convolutions, wide.
    resnet18: stages of two residual blocks of two convolutions.
    mlp: two hidden layers, for vectors.
"""

from gradhomog.experiments.models.convolutional import conv4, conv6
from gradhomog.experiments.models.dropblock import DropBlock
from gradhomog.experiments.models.lookup import NAMES, build
from gradhomog.experiments.models.perceptron import mlp
from gradhomog.experiments.models.residual import resnet10, resnet18
from gradhomog.experiments.models.residual12 import resnet12

__all__ = ["NAMES", "DropBlock", "build", "conv4", "conv6", "mlp", "resnet10", "resnet12", "resnet18"]
