"""Homogenizers that act in the encoder take effect only while attached; a step without that raises."""

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import OptionError

from .networks import take_step

MESSAGE = r"isi must be attached to the encoder.*`with pipe\.attached\(encoder\):`.*learner.*meta_step\(..., encoder="


def make_losses(encoder):
    generator = torch.Generator().manual_seed(1)
    z = encoder(torch.rand(4, 1, 6, 6, generator=generator))
    return [z.square().mean(), (z - 1).square().mean()]


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten())


def step(call, encoder, pipe):
    take_step(call, [make_losses(encoder)], pipe, parameters=encoder)


calls = pytest.mark.parametrize("call", ["backward", "loss", "accumulated"])


@calls
@pytest.mark.parametrize("text", ["isi", "pcgrad + isi"])
def test_a_step_without_the_attachment_that_the_pipeline_needs_raises(call, text, encoder):
    pipe = gradhomog.pipeline(text)
    with pytest.raises(OptionError, match=MESSAGE):
        step(call, encoder, pipe)
    with pipe.attached(encoder):
        pass
    with pytest.raises(OptionError, match=MESSAGE):
        step(call, encoder, pipe)
    with pytest.raises(ZeroDivisionError), pipe.attached(encoder):
        _ = 1 / 0
    with pytest.raises(OptionError, match=MESSAGE):
        step(call, encoder, pipe)
    assert encoder[0].weight.grad is None
    assert pipe.steps == 0


@calls
def test_an_attached_pipeline_takes_a_step_that_differs_from_the_plain_step(call, encoder):
    pipe = gradhomog.pipeline("isi(rate=0.9)")
    with pipe.attached(encoder):
        step(call, encoder, pipe)
    homogenized, encoder[0].weight.grad = encoder[0].weight.grad, None
    step(call, encoder, gradhomog.pipeline("pcgrad"))
    assert pipe.steps == 1
    assert not torch.allclose(homogenized, encoder[0].weight.grad)


def test_a_loss_that_was_computed_while_attached_can_be_differentiated_later(encoder):
    pipe = gradhomog.pipeline("isi")
    with pipe.attached(encoder):
        total = gradhomog.loss(make_losses(encoder), pipe, parameters=encoder)
    total.backward()
    assert pipe.steps == 1


def test_each_batch_of_an_accumulation_can_be_attached_separately(encoder):
    pipe = gradhomog.pipeline("isi")
    with gradhomog.accumulated(pipe, parameters=encoder) as several:
        for _ in range(2):
            with pipe.attached(encoder):
                several.add(make_losses(encoder))
    assert pipe.steps == 1


def test_a_validation_loss_without_gradients_needs_no_attachment(encoder):
    encoder.eval()
    with torch.no_grad():
        losses = make_losses(encoder)
        total = gradhomog.loss(losses, gradhomog.pipeline("isi"), parameters=encoder)
    torch.testing.assert_close(total, torch.stack(losses).mean())
