"""A pipeline that chooses tasks: only their losses are differentiated, in every form of the backward pass."""

import copy

import pytest
import torch

import gradhomog
from gradhomog import OptionError, TaskKey
from gradhomog.step.step import make_step

from .networks import Model, flat, gradients, inputs, matrix, take_step

NAMES = ("a", "b", "c")
TEXT = "tracked(method='upgrad', average=0.5)"


class Counted(torch.autograd.Function):
    """The identity, which records in its backward pass that a task's loss is differentiated."""

    @staticmethod
    def forward(ctx, loss, task, differentiated):
        ctx.task, ctx.differentiated = task, differentiated
        return loss.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.differentiated.append(ctx.task)
        return grad, None, None


def counted_losses(model, differentiated, number=0):
    losses = model.losses(model.encoder(inputs(seed=number)), seed=number)
    return [Counted.apply(loss, task, differentiated) for task, loss in enumerate(losses)]


def by_hand(model, steps):
    """The encoder's gradient in each step, as one vector, from rows of one task per step."""
    pipe, found = gradhomog.pipeline(TEXT), []
    for number in range(steps):
        slot = number % 3
        row = matrix([counted_losses(model, [], number)[slot]], model.encoder.parameters())
        pending = pipe.compute(make_step(row, slots=[slot]))
        pending.commit()
        found.append(pending.result.direction[""])
    return found


def encoder_gradient(model):
    return flat(parameter.grad for parameter in model.encoder.parameters())


calls = pytest.mark.parametrize("call", ["backward", "loss"])


@calls
@pytest.mark.parametrize("passed", ["all losses", "chosen losses"])
def test_only_the_chosen_loss_is_differentiated_and_only_its_head_has_a_gradient(call, passed):
    model, pipe = Model(), gradhomog.pipeline(TEXT)
    for number, expected in enumerate(by_hand(Model(), 7)):
        model.zero_grad()
        differentiated = []
        losses = counted_losses(model, differentiated, number)
        [slot] = chosen = pipe.choose(3)
        assert chosen == pipe.choose(3) == (number % 3,)
        given = losses if passed == "all losses" else [losses[slot] if slot == task else None for task in range(3)]
        take_step(call, [given], pipe, parameters=model.encoder)
        assert differentiated == [slot]
        torch.testing.assert_close(encoder_gradient(model), expected)
        for task, (head, loss) in enumerate(zip(model.heads, counted_losses(model, [], number), strict=True)):
            own = torch.autograd.grad(loss, list(head.parameters()))
            assert [p.grad for p in head.parameters()] == [None, None] if task != slot else True
            if task == slot:
                torch.testing.assert_close([p.grad for p in head.parameters()], list(own))


def test_names_of_losses_are_chosen_by_name_and_are_the_domains_of_the_state():
    model, pipe = Model(), gradhomog.pipeline("tracked")
    order = []
    for number in range(6):
        losses = dict(zip(NAMES, counted_losses(model, [], number), strict=True))
        [name] = pipe.choose(list(losses))
        order.append(name)
        step = gradhomog.backward(losses, pipe, parameters=model.encoder)
        assert step.tasks == (NAMES.index(name),)
    assert order == [*NAMES, *NAMES]
    assert set(pipe.state_dict()["0:tracked"]["averages"]) == set(NAMES)


def test_the_choice_is_among_the_losses_that_are_present():
    model, pipe, order = Model(), gradhomog.pipeline(TEXT), []
    for number, absent in enumerate([None, 1, 1, 0, 2, None]):
        losses = counted_losses(model, differentiated := [], number)
        if absent is not None:
            losses[absent] = None
        gradhomog.backward(losses, pipe, parameters=model.encoder)
        order += differentiated
    assert order == [0, 2, 0, 1, 0, 2]


def test_each_group_of_parameters_keeps_averages_of_the_same_tasks():
    model, pipe = Model(), gradhomog.pipeline(TEXT)
    parts = [gradhomog.pipeline(TEXT) for _ in range(2)]
    for number in range(5):
        model.zero_grad()
        losses = counted_losses(model, differentiated := [], number)
        assert pipe.choose(3) == (number % 3,)
        gradhomog.backward(losses, pipe, parameters=model.encoder, per="layer")
        assert differentiated == [number % 3]
        loss = counted_losses(model, [], number)[number % 3]
        for layer, part in zip((model.encoder[0], model.encoder[2]), parts, strict=True):
            pending = part.compute(make_step(matrix([loss], layer.parameters()), slots=[number % 3]))
            pending.commit()
            found = flat(parameter.grad for parameter in layer.parameters())
            torch.testing.assert_close(found, pending.result.direction[""])
    resumed = gradhomog.pipeline(TEXT)
    resumed.load_state_dict(copy.deepcopy(pipe.state_dict()))
    assert resumed.choose(3) == pipe.choose(3) == (2,)


def test_batches_of_one_step_have_the_same_chosen_task():
    model, pipe = Model(), gradhomog.pipeline(TEXT)
    for number, expected in enumerate(by_hand(Model(), 4)):
        model.zero_grad()
        differentiated = []
        with gradhomog.accumulated(pipe, parameters=model.encoder) as several:
            for absent in (None, (number + 1) % 3, number % 3, None):  # the third batch lacks the chosen task
                losses = [loss / 3 for loss in counted_losses(model, differentiated, number)]
                several.add([None if task == absent else loss for task, loss in enumerate(losses)])
        assert differentiated == [number % 3] * 3
        torch.testing.assert_close(encoder_gradient(model), expected)
        assert several.step.tasks == (number % 3,)


def test_memory_and_features_have_no_effect():
    model, pipe = Model(), gradhomog.pipeline(TEXT)
    for number, expected in enumerate(by_hand(Model(), 4)):
        model.zero_grad()
        features = model.encoder(inputs(seed=number))
        losses = model.losses(features, seed=number)
        gradhomog.backward(losses, pipe, parameters=model.encoder, features=features, memory="low")
        torch.testing.assert_close(encoder_gradient(model), expected)


def test_a_gradient_scaler_does_not_change_the_averages_and_an_overflow_changes_no_state():
    model, pipe = Model().float(), gradhomog.pipeline(TEXT)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, expected in enumerate(by_hand(Model(), 4)):
        model.zero_grad()
        losses = model.losses(model.encoder(inputs(seed=number).float()), seed=number)
        gradhomog.backward(losses, pipe, parameters=model.encoder, scaler=scaler)
        torch.testing.assert_close(encoder_gradient(model).double() / 1024, expected, rtol=1e-4, atol=1e-4)
    model.zero_grad()
    losses = model.losses(model.encoder(inputs().float()))
    chosen = pipe.choose(3)
    gradhomog.backward([1e38 * loss for loss in losses], pipe, parameters=model.encoder, scaler=scaler)
    assert not any(bool(parameter.grad.isfinite().any()) for parameter in model.encoder.parameters())
    assert pipe.choose(3) == chosen
    assert pipe.steps == 4


def test_a_task_that_is_not_finite_raises_and_is_chosen_again():
    model, pipe = Model(), gradhomog.pipeline(TEXT)
    losses = counted_losses(model, [])
    with pytest.raises(gradhomog.NonfiniteError, match="task 0 is not finite"):
        gradhomog.backward([torch.inf * losses[0], *losses[1:]], pipe, parameters=model.encoder)
    assert pipe.choose(3) == (0,)
    assert all(gradient is None for gradient in gradients(model))


def weight_and_other():
    return (torch.ones(2, requires_grad=True) for _ in range(2))


@calls
def test_a_parameter_that_only_other_losses_use_gets_the_kept_direction(call):
    weight, other = weight_and_other()
    pipe = gradhomog.pipeline("tracked(method='static')")
    expected = {0: (1.0, None), 1: (1.0, 1.5), 2: (1.0, 1.5)}  # task 0 does not use `other`
    for number in range(3):
        weight.grad = other.grad = None
        losses = [weight.sum(), (weight + 3 * other).sum()]
        take_step(call, [losses], pipe, parameters=[weight, other])
        for parameter, value in zip((weight, other), expected[number], strict=True):
            if value is None:
                assert parameter.grad is None
            else:
                torch.testing.assert_close(parameter.grad, torch.full((2,), value))


@pytest.mark.parametrize("accumulates", [False, True])
def test_a_chosen_loss_without_shared_parameters_has_a_row_of_zeros_if_others_use_them(accumulates):
    weight, head = weight_and_other()
    pipe = gradhomog.pipeline("tracked(method='static')")
    for number in range(4):
        weight.grad, losses = None, [head.sum(), 2 * weight.sum()]
        if number > 1:  # the other loss is not computed
            losses[1 - number % 2] = None
        if accumulates:
            with gradhomog.accumulated(pipe, parameters=[weight]) as several:
                several.add(losses)
            direction = several.step.direction["0"]
        else:
            direction = gradhomog.backward(losses, pipe, parameters=[weight]).direction["0"]
        torch.testing.assert_close(direction, torch.full((2,), float(number > 0)))


def test_losses_without_shared_parameters_raise_in_the_first_step():
    weight, head = weight_and_other()
    with pytest.raises(OptionError, match="the losses must depend on the shared parameters"):
        gradhomog.backward([head.sum(), 2 * head.sum()], gradhomog.pipeline(TEXT), parameters=[weight])


def test_several_homogenizers_choose_one_after_the_other():
    class Last(gradhomog.Homogenizer):
        def choose(self, keys):
            return [len(keys) - 1]

    class WithoutFirst(gradhomog.Homogenizer):
        def choose(self, keys):
            return range(1, len(keys))

    pipe = gradhomog.pipeline([WithoutFirst(), Last()])
    assert pipe.choose([TaskKey(slot) for slot in (4, 7, 9)]) == (2,)
    assert gradhomog.pipeline([Last(), TEXT]).choose(3) == (2,)
