"""Training loops: gradient accumulation, gradient scalers, half precision, sparse gradients."""

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import OptionError

from .networks import Model, gradients, inputs


@pytest.mark.parametrize("text", ["none", "mgda", "gradnorm"])
@pytest.mark.parametrize("through", [False, True])
def test_rows_of_several_batches_added_up_are_those_of_the_whole_batch(text, through):
    model, reference = Model(), Model()
    x, pipe, other = inputs(size=8), gradhomog.pipeline(text), gradhomog.pipeline(text)

    def losses(owner, z, rows):  # sums, so that batches add up
        return [head(z).square().sum() * (1 + task) for task, head in enumerate(owner.heads)]

    for _ in range(2):
        with gradhomog.accumulated(pipe, parameters=model.encoder) as several:
            for part in x.split(3):
                z = model.encoder(part)
                several.add(losses(model, z, part), features=z if through else None)
        z = reference.encoder(x)
        gradhomog.backward(losses(reference, z, x), other, parameters=reference.encoder)
    torch.testing.assert_close(gradients(model), gradients(reference))
    assert several.step.direction.keys() == dict(model.encoder.named_parameters()).keys()
    with pytest.raises(OptionError, match="it has ended"):
        several.add(losses(model, model.encoder(x), x))


def interrupted(model, batches):
    """Add batches with the numbers of losses in `batches`, and raise before the end of the block."""
    pipe = gradhomog.pipeline("mgda")
    with gradhomog.accumulated(pipe, parameters=model.encoder) as several:
        for tasks in batches:
            several.add(model.losses(model.encoder(inputs()))[:tasks])
        with pytest.raises(OptionError, match="has ended without an error"):
            _ = several.step
        if batches:
            raise RuntimeError("power cut")


@pytest.mark.parametrize(
    ("batches", "message"),
    [([3], "power cut"), ([3, 2], "got 2 losses, but 3 in the first batch"), ([], "at least one batch")],
)
def test_after_an_error_in_the_block_nothing_is_written(batches, message):
    model = Model()
    with pytest.raises((RuntimeError, OptionError), match=message):
        interrupted(model, batches)
    assert gradients(model) == [None] * len(gradients(model))


@pytest.mark.parametrize("text", ["none", "mgda", "gradnorm", "gradnorm + pcgrad"])
def test_gradients_have_the_scale_of_the_scaler_and_homogenizers_receive_unscaled_rows(text):
    model, reference = Model(), Model()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    pipe, other = gradhomog.pipeline(text), gradhomog.pipeline(text)
    for owner, scaling, p in ((model, scaler, pipe), (reference, None, other)):
        for _ in range(2):
            owner.zero_grad()
            z = owner.encoder(inputs())
            gradhomog.backward(owner.losses(z), p, parameters=owner.encoder, features=z, scaler=scaling)
    torch.testing.assert_close(gradients(model), [1024 * gradient for gradient in gradients(reference)])
    assert repr(pipe.state_dict()) == repr(other.state_dict())


def test_sparse_gradients_of_embeddings_are_supported():
    table = nn.Embedding(10, 3, sparse=True)
    rows = table(torch.tensor([1, 1, 4]))
    gradhomog.backward([rows.sum(), rows[0].square().sum()], gradhomog.pipeline("mgda"))
    assert table.weight.grad.layout == torch.strided
    assert (table.weight.grad[4] >= 0).all()


def test_two_parameters_whose_gradients_share_memory_are_each_scaled_once():
    first, second = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    total = (first + second) * torch.arange(3.0)
    gradhomog.backward([total.sum(), total.sum()], gradhomog.pipeline("none"))
    assert first.grad.tolist() == second.grad.tolist() == [0.0, 1.0, 2.0]
    head, other = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    gradhomog.backward([total.detach().sum() + (first + head + other).sum(), first.sum()], gradhomog.pipeline("none"))
    head.grad.add_(1)
    assert other.grad.tolist() == [1.0, 1.0, 1.0]
