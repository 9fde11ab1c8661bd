"""Feature-level rows, groups of parameters, and views of features: each compared with its definition."""

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import Homogenizer

from .networks import Model, gradients, inputs, matrix


@pytest.mark.parametrize("nonfinite", ["raise", "drop"])
@pytest.mark.parametrize("text", ["none", "mgda", "pcgrad(order='fixed')"])
def test_feature_level_homogenizes_gradients_wrt_features_and_backpropagates_once(text, nonfinite):
    model, reference = Model(), Model()
    z = model.encoder(inputs())
    pipe = gradhomog.pipeline(text, nonfinite=nonfinite)
    found = gradhomog.backward(model.losses(z), pipe, parameters=model.encoder, features=z, level="features")
    z = reference.encoder(inputs())
    rows = torch.stack([torch.autograd.grad(loss, z, retain_graph=True)[0].flatten() for loss in reference.losses(z)])
    feature_grad = gradhomog.pipeline(text).combine(rows).view_as(z)
    expected = torch.autograd.grad(z, list(reference.encoder.parameters()), feature_grad)
    torch.testing.assert_close([p.grad for p in model.encoder.parameters()], list(expected))
    assert model.heads[0].weight.grad is not None
    named = [name for name, _ in model.encoder.named_parameters()]
    torch.testing.assert_close(found.direction, dict(zip(named, expected, strict=True)))


def test_feature_level_of_several_tensors_and_of_maps():
    shared, other = nn.Conv2d(1, 3, 3), nn.Linear(9, 4)
    x = torch.randn(2, 1, 5, 5)
    maps, flat = shared(x), other(x[:, 0, :3, :3].flatten(1))
    losses = [maps.square().mean() + flat.mean(), (maps - 1).square().mean(), flat.square().mean()]
    feature_grads = gradhomog.pipeline("mgda").combine(matrix(losses, [maps, flat])).split([maps.numel(), flat.numel()])
    parameters = [*shared.parameters(), *other.parameters()]
    expected = torch.autograd.grad(
        [maps, flat], parameters, [feature_grads[0].view_as(maps), feature_grads[1].view_as(flat)], retain_graph=True
    )
    gradhomog.backward(losses, gradhomog.pipeline("mgda"), features=(maps, flat), level="features")
    torch.testing.assert_close([p.grad for p in parameters], list(expected))


@pytest.mark.parametrize(
    ("per", "groups"),
    [
        ("layer", [["0.weight", "0.bias"], ["2.weight", "2.bias"]]),
        ("tensor", [["0.weight"], ["0.bias"], ["2.weight"], ["2.bias"]]),
        ({"biases": "*.bias", "rest": "*"}, [["0.bias", "2.bias"], ["0.weight", "2.weight"]]),
    ],
)
def test_groups_are_homogenized_separately(per, groups):
    model, reference = Model(), Model()
    pipe = gradhomog.pipeline("mgda")
    found = model.backward(pipe, per=per)
    named = dict(reference.encoder.named_parameters())
    losses = reference.losses(reference.encoder(inputs()))
    for group in groups:
        expected = gradhomog.pipeline("mgda").combine(matrix(losses, [named[name] for name in group]))
        mine = torch.cat([dict(model.encoder.named_parameters())[name].grad.flatten() for name in group])
        torch.testing.assert_close(mine, expected)
    assert set(found.direction) == set(named)


@pytest.mark.parametrize("text", ["rlw", "cr_mogm(method='rlw', alpha=0)", "tracked(method='rlw', rows='all')"])
def test_each_group_draws_random_numbers_that_are_a_function_of_seed_step_and_its_name(text):
    """In every group the rows are e_1, e_2, e_3, so that the direction is a third of the random weights."""
    groups = {"first": "a", "second": "b", "third": "c"}

    def run(pipe, steps, names="abc", per=groups):
        shared = {name: torch.zeros(3, dtype=torch.float64, requires_grad=True) for name in names}
        for _ in range(steps):
            losses = list(torch.stack(list(shared.values())).sum(0).unbind())
            found = gradhomog.backward(losses, pipe, parameters=shared, per=per).direction
        return [found[name].tolist() for name in names]

    pipe, resumed = gradhomog.pipeline(text), gradhomog.pipeline(text)
    first, second = run(pipe, 1), run(pipe, 1)
    assert len({tuple(draws) for draws in first + second}) == 6
    assert pipe.steps == 2
    resumed.load_state_dict(pipe.state_dict())
    assert resumed.steps == 2
    assert run(resumed, 3) == run(pipe, 3)
    fewer = {"third": "c", "first": "a"}  # the draws of a group depend neither on other groups nor on their order
    assert run(gradhomog.pipeline(text), 1, "ca", fewer) == [first[2], first[0]]


def test_each_group_has_a_separate_state_that_can_be_saved_and_loaded():
    def run(pipe, model, steps):
        for _ in range(steps):
            z = model.encoder(inputs())
            gradhomog.backward(model.losses(z), pipe, parameters=model.encoder, features=z, per="layer")
        return pipe

    text = "gradnorm(alpha=0, lr=0.1)"
    whole, first = gradhomog.pipeline(text), gradhomog.pipeline(text)
    model, again = Model(), Model()
    run(whole, model, 5)
    run(first, again, 2)
    fresh = gradhomog.pipeline(text)
    fresh.load_state_dict(first.state_dict())
    run(fresh, again, 3)
    torch.testing.assert_close(gradients(model), gradients(again))
    state = whole.state_dict()
    assert list(state) == ["steps", "named", "last_losses", "0:gradnorm", "group 0", "group 2"]
    assert state["group 0"] != state["group 2"]


class Turn(Homogenizer):
    """Multiplies a task's features by its slot plus one, and stores the features that `update` receives."""

    state_names = ("seen",)

    def __init__(self):
        self.seen = []

    def transform(self, features, keys):
        return features * torch.tensor([key.slot + 1.0 for key in keys], dtype=features.dtype)[:, None, None]

    def update(self, step):
        return {"seen": [step.features, step.feature_grads]}


def test_views_are_the_results_of_transform_and_rows_are_differentiated_through_them():
    model, reference, turn = Model(), Model(), Turn()
    pipe = gradhomog.pipeline([turn])
    z = model.encoder(inputs())
    views = gradhomog.task_features(z, pipe, tasks=3)
    assert len(views) == 3
    torch.testing.assert_close(torch.stack(list(views)), torch.stack([z, 2 * z, 3 * z]))
    gradhomog.backward(model.losses(torch.stack(list(views))), pipe, features=views)
    z = reference.encoder(inputs())
    z.retain_grad()
    sum(reference.losses(torch.stack([z, 2 * z, 3 * z]))).backward()
    for mine, theirs in zip(model.encoder.parameters(), reference.encoder.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad / 3)
    features, grads = turn.seen
    torch.testing.assert_close(features, z.detach().expand(3, *z.shape))
    scaled = grads * torch.tensor([1.0, 2.0, 3.0]).double()[:, None, None]  # gradients w.r.t. z
    torch.testing.assert_close(scaled.sum(0), z.grad)
