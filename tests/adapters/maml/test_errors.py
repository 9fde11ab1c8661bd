"""Errors of MAML for invalid options and networks."""

from __future__ import annotations

import pytest
import torch
import torchopt
from torch import nn

from gradhomog import OptionError
from gradhomog_adapters.maml import MAML
from tests.adapters.few_shot import networks


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inner": "adagard"}, "`inner` must be one of"),
        ({"inner": 3}, "`inner` must be a name"),
        ({"inner": torch.optim.SGD}, "`inner` must be a name"),
        ({"inner": torchopt.MetaSGD}, "`inner` must be a name"),
        ({"inner": torchopt.sgd(lr=0.1, momentum=0.9, dampening=0.5)}, "given as a function"),
        ({"inner_lr": 0.0}, "`inner_lr` must be a number > 0"),
        ({"inner_steps": -1}, "`inner_steps` must be an integer ≥ 0; got -1"),
        ({"test_steps": -1}, "`test_steps` must be an integer ≥ 0"),
        ({"adapt": "body.*"}, r"`adapt` must match.*'body.\*' matches none of encoder.0.weight"),
        ({"adapt": []}, "`adapt` must contain at least one pattern"),
        ({"inner_steps": 1.5}, "`inner_steps` must be an integer"),
        ({"norm": "instance"}, '`norm` must be one of "batch", "support", "frozen"'),
    ],
)
def test_invalid_options_raise(options, message):
    with pytest.raises(OptionError, match=message):
        MAML(*networks(), **options)


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
