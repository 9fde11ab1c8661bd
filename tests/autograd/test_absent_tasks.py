"""A task whose loss is None or a constant is excluded from the step and keeps its state."""

import pytest
import torch

import gradhomog

from .networks import Model, gradients, inputs

ABSENT = {"none": lambda loss: None, "constant": lambda loss: loss.detach()}
absent = pytest.mark.parametrize("remove", ABSENT.values(), ids=ABSENT)


@absent
@pytest.mark.parametrize("text", ["none", "pcgrad", "mgda", "moco", "gradnorm", "rotograd"])
def test_the_step_is_that_of_the_tasks_that_are_present(remove, text):
    one, other = Model(), Model()
    del other.heads[1]
    pipes, domains = [gradhomog.pipeline(text) for _ in range(2)], ["a", "b", "c"]
    options = [{}, {}]
    features = [model.encoder(inputs()) for model in (one, other)]
    inputs_of_heads = list(features)
    if text == "rotograd":
        views = [
            gradhomog.task_features(features[0], pipes[0], tasks=3, domains=domains),
            gradhomog.task_features(features[1], pipes[1], tasks=2, domains=["a", "c"]),
        ]
        inputs_of_heads = [torch.stack(list(view)) for view in views]
        options = [{"features": view} for view in views]
    losses = one.losses(inputs_of_heads[0])
    losses[1] = remove(losses[1])
    generator = torch.Generator().manual_seed(1)
    targets = torch.randn(3, 7, 2, dtype=torch.float64, generator=generator)[[0, 2]]
    views_of_two = inputs_of_heads[1] if text == "rotograd" else [features[1]] * 2
    others = [
        scale * (head(view) - target).square().mean()
        for scale, head, view, target in zip((1.0, 100.0), other.heads, views_of_two, targets, strict=True)
    ]
    step = gradhomog.backward(losses, pipes[0], parameters=one.encoder, domains=domains, **options[0])
    gradhomog.backward(others, pipes[1], parameters=other.encoder, domains=["a", "c"], **options[1])
    assert step.tasks == (0, 2)
    assert all(parameter.grad is None for parameter in one.heads[1].parameters())
    del one.heads[1]
    torch.testing.assert_close(gradients(one), gradients(other))


@absent
def test_every_task_keeps_its_state_if_one_is_absent(remove):
    model, pipe = Model(), gradhomog.pipeline("gradnorm(lr=0.5)")

    def step(without=None):
        losses = dict(zip("abc", model.losses(model.encoder(inputs())), strict=True))
        if without is not None:
            losses[without] = remove(losses[without])
        gradhomog.backward(losses, pipe, parameters=model.encoder)
        return pipe.state_dict()["0:gradnorm"]["first_losses"]

    assert list(step(without="b")) == ["a", "c"]
    assert sorted(step()) == ["a", "b", "c"]


def test_accumulated_sums_each_task_over_the_batches_that_have_it():
    model, reference = Model(), Model()
    batches = [inputs(), inputs(seed=5)]
    with gradhomog.accumulated(gradhomog.pipeline("mgda"), parameters=model.encoder) as several:
        losses = model.losses(model.encoder(batches[0]))
        several.add([losses[0], None, losses[2]])
        losses = model.losses(model.encoder(batches[1]))
        several.add([losses[0], None, losses[2].detach()])
    first = reference.losses(reference.encoder(batches[0]))
    second = reference.losses(reference.encoder(batches[1]))
    gradhomog.backward([first[0] + second[0], None, first[2]], gradhomog.pipeline("mgda"), parameters=reference.encoder)
    assert several.step.tasks == (0, 2)
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad)
