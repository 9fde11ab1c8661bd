"""Options out of their range: the message names the option, the accepted values and the value.

The conformance kit passes NaN and a wrong type for every option of every learner.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchopt
from torch import nn

import gradhomog
from gradhomog import OptionError
from gradhomog_adapters.maml import MAML
from tests.adapters import checks
from tests.adapters.checks import networks

DAMPENED = torchopt.sgd(lr=0.1, momentum=0.9, dampening=0.5)  # stores outside of its state which step was the first

INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("maml", {"inner": "adagard"}, "`inner` must be one of"),
    ("maml", {"inner": 3}, "`inner` must be a name"),
    ("maml", {"inner": torch.optim.SGD}, "`inner` must be a name"),
    ("maml", {"inner": torchopt.MetaSGD}, "`inner` must be a name"),
    ("maml", {"inner": DAMPENED}, "given as a function"),
    ("maml", {"inner_lr": 0.0}, "`inner_lr` must be a number > 0"),
    ("maml", {"inner_steps": -1}, "`inner_steps` must be an integer ≥ 0; got -1"),
    ("maml", {"adapt": "body.*"}, r"`adapt` must match.*'body.\*' matches none of encoder.0.weight"),
    ("maml", {"adapt": []}, "`adapt` must contain at least one pattern"),
    ("maml", {"norm": "instance"}, '`norm` must be one of "batch", "support", "frozen"'),
    ("maml", {"engine": None}, '`engine` must be one of "auto", "loop", "vmap"'),
    ("maml", {"recompute": True, "engine": "vmap"}, "one task after the other"),
    ("maml", {"recompute": True, "compile": True}, "one task after the other"),
    ("maml", {"recompute": True, "inner": lambda: DAMPENED}, "stores which step was the first"),
    ("boil", {"adapt": "body.*"}, r"`adapt` must match.*'body\.\*' matches none of encoder\.0\.weight"),
    ("alfa", {"inner_lr": 0.0}, "`inner_lr` must be a number > 0; got 0.0"),
    ("alfa", {"inner_weight_decay": -1.0}, "`inner_weight_decay` must be a number ≥ 0; got -1.0"),
    ("cavia", {"context": 0}, "`context` must be an integer ≥ 1; got 0"),
    ("cavia", {"on": "head"}, '`on` must be one of "features"'),
    *(
        ("meta_sgd", {"rates": rates}, r"`rates` must be a number( or a list|, or two in increasing order)")
        for rates in (-0.1, (0.2, 0.1), float("nan"), [0.1], ())
    ),
    ("sharp_maml", {"outer_radius": -1}, "`outer_radius` must be a number ≥ 0; got -1"),
    ("sharp_maml", {"inner_radius": -1}, "`inner_radius` must be a number ≥ 0; got -1"),
    ("mamlpp", {"inner": torchopt.sgd(lr=0.1)}, "`inner` must be a name if rates are learned"),
    ("mamlpp", {"adapt": "encoder.1.*"}, "`adapt` must match more than scales and shifts"),
    ("mamlpp", {"final_outer_lr": float("nan")}, "`final_outer_lr` must be a number ≥ 0"),
    ("mamlpp", {"norm": "layer"}, "`norm` must be"),
    ("imaml", {"proximal": 0.0}, "`proximal` must be a number > 0"),
    ("imaml", {"cg_steps": 0}, "`cg_steps` must be an integer ≥ 1; got 0"),
    ("imaml", {"damping": -0.1}, "`damping` must be a number ≥ 0"),
    ("imaml", {"max_norm_ratio": 0.5}, "`max_norm_ratio` must be a number ≥ 1 and ≤ inf"),
    ("reptile", {"inner": torchopt.sgd(lr=0.1)}, "`scale` must be given if `inner` is an object"),
    ("reptile", {"scale": 0.0}, "`scale` must be a number > 0"),
    ("reptile", {"on": "query"}, '`on` must be one of "support", "all"; got \'query\''),
    ("reptile", {"inner_batch": 0}, "`inner_batch` must be an integer ≥ 1"),
    ("reptile", {"inner_batch": 2, "seed": -1}, "`seed` must be an integer ≥ 0"),
    ("reptile", {"keep_state": True, "engine": "vmap"}, "`keep_state` processes one task after the other"),
    ("reptile", {"keep_state": True, "compile": True}, "`keep_state` processes one task after the other"),
    (
        "reptile", {"inner": lambda: DAMPENED, "scale": 0.1, "keep_state": True},
        "`keep_state` requires an inner optimizer without hidden state",
    ),
    ("metaoptnet", {"regularization": 0.0}, "`regularization` must be a number > 0"),
    ("metaoptnet", {"scale": 0.0}, "`scale` must be a finite number other than 0"),
    ("relationnet", {"hidden": 0}, "`hidden` must be an integer ≥ 1"),
    ("relationnet", {"objective": "hinge"}, '`objective` must be one of "mse", "softmax"'),
    ("relationnet", {"maps": True}, r"`maps` requires an encoder that returns maps.*\[4\] according to the head"),
    ("relationnet", {"input_shape": [2]}, r"`input_shape` must be the shape of one input.*does not accept \[2\]"),
    ("relationnet", {"input_shape": [0]}, "`input_shape` must contain positive integers"),
    ("relationnet_ata", {"ascent_steps": -1}, "`ascent_steps` must be an integer ≥ 0; got -1"),
    ("relationnet_ata", {"ascent_lr": float("inf")}, "`ascent_lr` must be a number ≥ 0; got inf"),
    ("relationnet_ata", {"probability": 1.5}, r"`probability` must be a number ≥ 0 and ≤ 1; got 1.5"),
    ("relationnet_lrp", {"guidance": float("inf")}, r"`guidance` must be a number ≥ 0 or none; got inf"),
    ("baseline", {"classes": 0}, "`classes` must be an integer ≥ 1 or none; got 0"),
    ("baseline", {"test_epochs": -1}, "`test_epochs` must be an integer ≥ 0"),
    ("baseline_pp", {"test_batch": 0}, "`test_batch` must be an integer ≥ 1"),
    ("baseline_pp", {"scale": -1.0}, "`scale` must be a number > 0"),
    ("mtl", {"pretrain_steps": -1}, "`pretrain_steps` must be an integer ≥ 0"),
    ("mtl", {"pretrain_steps": 1, "classes": 0}, "`classes` must be an integer ≥ 1 or none; got 0"),
    ("skd", {"generation0_steps": -1}, "`generation0_steps` must be an integer ≥ 0"),
    ("skd", {"rotation_weight": -1.0}, "`rotation_weight` must be a number ≥ 0; got -1.0"),
    ("skd", {"distance_weight": float("inf")}, "`distance_weight` must be a number ≥ 0; got inf"),
    ("skd", {"temperature": 0}, "`temperature` must be a number > 0; got 0"),
    ("skd", {"regularization": 0}, "`regularization` must be a number > 0; got 0"),
    ("skd", {"classes": 0}, "`classes` must be an integer ≥ 1 or none; got 0"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "message"), INVALID)
def test_invalid_options_raise(name, options, message):
    pair = checks.image_networks(flatten=True) if name in ("mtl", "skd") else networks(norm=name == "mamlpp")
    with pytest.raises(OptionError, match=message):
        gradhomog.learner(name, *pair, **options)


def test_options_that_a_subclass_passes_on_are_validated():
    class Subclass(MAML):
        def __init__(self, *args, **keywords):
            super().__init__(*args, **keywords)

    with pytest.raises(OptionError, match="`inner_steps` must be an integer ≥ 0; got -1"):
        Subclass(*networks(), inner_steps=-1)


def test_a_network_without_parameters_raises():
    with pytest.raises(OptionError, match=r"`encoder` must be a torch\.nn\.Module; got str"):
        MAML("encoder", nn.Linear(2, 2))
    with pytest.raises(OptionError, match="at least one parameter"):
        MAML(nn.Identity(), nn.Identity())
