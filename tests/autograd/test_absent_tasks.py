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
    found = []
    for slots in ([0, 1, 2], [0, 2]):
        model, pipe, domains = Model(), gradhomog.pipeline(text), ["abc"[slot] for slot in slots]
        views = gradhomog.task_features(model.encoder(inputs()), pipe, tasks=len(slots), domains=domains)
        first, *_, last = views
        losses = model.losses(torch.stack([first, views[1], last]))
        losses[1:2] = [remove(losses[1])] if len(slots) == 3 else []
        features = views if pipe.requirements.transforming else None
        step = gradhomog.backward(losses, pipe, parameters=model.encoder, domains=domains, features=features)
        assert len(step.tasks) == 2
        assert all(parameter.grad is None for parameter in model.heads[1].parameters())
        found.append((step.tasks, [gradient for gradient in gradients(model) if gradient is not None]))
    assert found[0][0] == (0, 2)
    torch.testing.assert_close(found[0][1], found[1][1])


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
