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


GROUPS = torch.tensor([0, 0, 2, 1, 0, 2, 2, 0, 1])
"""The group of each of nine examples; each is a task, and the third has ten times the loss."""


def means_by_group(model, x, groups):
    """The mean loss of each group with examples in this batch, by name, and the numbers of examples."""
    z = model.encoder(x)
    losses, counts = {}, {}
    for task, head in enumerate(model.heads):
        chosen = groups == task
        counts[f"group {task}"] = int(chosen.sum())
        losses[f"group {task}"] = 10.0**task * head(z[chosen]).square().mean() if chosen.any() else None
    return losses, counts


@pytest.mark.parametrize("text", ["none", "mgda", "gradnorm", "gradnorm + pcgrad", "uw", "trimmed_mean"])
@pytest.mark.parametrize("sizes", [[1] * 9, [4, 2, 3], [9]])
@pytest.mark.parametrize("form", ["add", "loss", "loss with a scaler"])
def test_means_over_parts_with_their_numbers_of_examples_give_the_step_of_the_whole_batch(text, sizes, form):
    model, reference, x = Model(), Model(), inputs(size=9)
    pipe, other = gradhomog.pipeline(text), gradhomog.pipeline(text)
    scale = 1024.0 if form == "loss with a scaler" else 1.0
    several = gradhomog.accumulated(pipe, parameters=model.encoder, reduction="sum")
    for _ in range(2):  # two steps, with the state of the first
        parts = list(zip(x.split(sizes), GROUPS.split(sizes), strict=True))
        if form == "add":
            with several:
                for part in parts:
                    losses, examples = means_by_group(model, *part)
                    several.add(losses, examples=examples)
        else:
            for index, part in enumerate(parts):
                losses, examples = means_by_group(model, *part)
                total = several.loss(losses, examples=examples, last=index == len(parts) - 1)
                present = [loss for loss in losses.values() if loss is not None]
                torch.testing.assert_close(total.detach(), torch.stack(present).sum())
                (scale * total / len(parts)).backward()
        losses, _ = means_by_group(reference, x, GROUPS)
        report = None

        def keep(result):
            nonlocal report
            report = result

        gradhomog.loss(losses, other, parameters=reference.encoder, reduction="sum", report=keep).backward()
        torch.testing.assert_close(several.step.losses, report.losses)
    torch.testing.assert_close(gradients(model), [scale * gradient for gradient in gradients(reference)])
    torch.testing.assert_close(pipe.state_dict(), other.state_dict())


@pytest.mark.parametrize("form", ["sums", "means", "loss"])
def test_gradients_wrt_features_of_several_batches_are_those_of_the_whole_batch(form):
    model, reference, x = Model(), Model(), inputs(size=9)
    pipe = gradhomog.pipeline("mgda(on='features')")

    def losses(owner, z):
        return [10.0**task * head(z).square().mean() for task, head in enumerate(owner.heads)]

    several = gradhomog.accumulated(pipe, parameters=model.encoder)
    if form == "loss":
        for index, part in enumerate(x.split([4, 2, 3])):
            z = model.encoder(part)
            total = several.loss(losses(model, z), features=z, examples=len(part), last=index == 2)
            (total / 3).backward()
    else:
        with several:
            for part in x.split([4, 2, 3]):
                z, count = model.encoder(part), len(part)
                shares = [count / 9 * loss if form == "sums" else loss for loss in losses(model, z)]
                several.add(shares, features=z, examples=None if form == "sums" else count)
    z = reference.encoder(x)
    report = gradhomog.backward(losses(reference, z), pipe, parameters=reference.encoder, features=z)
    torch.testing.assert_close(several.step.weights, report.weights)
    torch.testing.assert_close(gradients(model), gradients(reference))


def test_a_batch_without_tasks_adds_nothing_and_can_be_the_last_or_the_only_one():
    model, reference, x = Model(), Model(), inputs(size=9)
    several = gradhomog.accumulated(gradhomog.pipeline("mgda"), parameters=model.encoder, reduction="sum")
    empty = dict.fromkeys(["group 0", "group 1", "group 2"])
    several.loss(empty, last=True, examples=1).backward()
    assert gradients(model) == [None] * len(gradients(model))
    losses, examples = means_by_group(model, x, GROUPS)
    for batch in ((empty, 1, False), (losses, examples, False), (empty, 1, True)):
        (several.loss(batch[0], examples=batch[1], last=batch[2]) / 3).backward()
    losses, _ = means_by_group(reference, x, GROUPS)
    gradhomog.loss(losses, gradhomog.pipeline("mgda"), parameters=reference.encoder, reduction="sum").backward()
    torch.testing.assert_close(gradients(model), gradients(reference))


@pytest.mark.parametrize("examples", [1, 65536])
def test_large_numbers_of_examples_do_not_overflow_half_precision(examples):
    torch.manual_seed(0)
    net, x = nn.Linear(3, 2).half(), torch.randn(4, 3).half()
    with gradhomog.accumulated(gradhomog.pipeline("mgda"), parameters=net) as several:
        for part in x.split(2):
            several.add(net(part).square().mean(0), examples=examples)
    found, net.weight.grad = net.weight.grad, None
    gradhomog.backward(net(x).square().mean(0), gradhomog.pipeline("mgda"), parameters=net)
    torch.testing.assert_close(found, net.weight.grad, rtol=0.02, atol=1e-3)


def test_a_block_that_ended_with_an_error_leaves_nothing_to_the_next_step():
    model, reference, x = Model(), Model(), inputs()
    several = gradhomog.accumulated(gradhomog.pipeline("mgda"), parameters=model.encoder)

    def add_three_and_two_losses():
        with several:
            for tasks in (3, 2):
                several.add([1000 * loss for loss in model.losses(model.encoder(x))[:tasks]])

    with pytest.raises(OptionError, match="got 2 losses"):
        add_three_and_two_losses()
    several.loss(model.losses(model.encoder(x)), last=True).backward()
    losses = reference.losses(reference.encoder(x))
    gradhomog.backward(losses, gradhomog.pipeline("mgda"), parameters=reference.encoder)
    torch.testing.assert_close(gradients(model), gradients(reference))


def test_a_task_that_is_in_a_later_batch_only_is_an_error_for_homogenizers_that_choose():
    model, x = Model(), inputs(size=9)
    several = gradhomog.accumulated(gradhomog.pipeline("tracked"), parameters=model.encoder)
    losses, examples = means_by_group(model, x[:2], GROUPS[:2])
    several.loss(losses, examples=examples, last=False).backward()
    losses, examples = means_by_group(model, x, GROUPS)
    with pytest.raises(OptionError, match=r"tracked chooses among the tasks of the first batch.*task group 1"):
        several.loss(losses, examples=examples, last=True)


def test_wrong_batches_of_a_window_are_errors():
    model, x = Model(), inputs()
    several = gradhomog.accumulated(gradhomog.pipeline("mgda"), parameters=model.encoder)

    def losses():
        return model.losses(model.encoder(x))

    late = several.loss(losses(), last=False)
    several.loss(losses(), last=True).backward()
    with pytest.raises(OptionError, match="the step of this batch was taken before"):
        late.backward()
    with pytest.raises(OptionError, match="must be called in the block"):
        several.add(losses())
    with several:
        several.add(losses())
        with pytest.raises(OptionError, match="must be called without a block"):
            several.loss(losses(), last=True)
    several.loss(losses(), last=False, examples=2).backward()
    for examples, message in (
        (None, "for all batches of a step or for none"),
        ({"a": 1}, r"must have the keys of `losses`, \[\]; got \['a'\]"),
        ([1, 2], "one number for each of the 3 losses; got 2"),
    ):
        with pytest.raises(OptionError, match=message):
            several.loss(losses(), last=True, examples=examples)


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
