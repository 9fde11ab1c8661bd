"""Reptile: rows against loops with `torch.optim` and a closed form; minibatches; kept optimizer state."""

import copy

import pytest
import torch
import torchopt
from torch import nn

from gradhomog import OptionError, TaskBatch
from gradhomog_adapters.reptile import Reptile
from tests.adapters import checks
from tests.adapters.checks import BETAS, INNER_OF_PYTORCH, networks, tasks

LR = 0.1


def make_learner(norm=False, homogenizers=None, **options):
    if not isinstance(options.get("inner", ""), str):
        options = {"scale": LR, **options}
    return Reptile(*networks(norm), homogenizers, inner_lr=LR, **options)


def copied(learner):
    """Copies of the network's parts, as one module."""
    return nn.ModuleDict({"encoder": copy.deepcopy(learner.encoder), "head": copy.deepcopy(learner.head)})


def train(model, optimizer, task, steps, examples=None):
    for step in range(steps):
        x, y = examples[step] if examples else (task.support_x, task.support_y)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model["head"](model["encoder"](x)), y).backward()
        optimizer.step()


def train_copy(learner, optimizer, task, steps, examples=None):
    """Copy the network and train it with an optimizer of PyTorch."""
    model = copied(learner)
    train(model, optimizer(model.parameters()), task, steps, examples)
    return model


def assert_rows_are_displacements(found, learner, model, divisor):
    for name, start in learner.named_parameters().items():
        expected = (start - model.get_parameter(name)).detach() / divisor
        torch.testing.assert_close(
            found[name], expected, rtol=1e-7, atol=1e-10, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("inner", "steps"), [("sgd", 0), ("sgd", 3), ("momentum", 3), ("adam", 3)])
def test_rows_are_displacements_by_an_optimizer_of_pytorch(inner, steps, norm, engine):
    # The gradient of a bias before batch normalization is a rounding error, which Adam scales to a full step.
    norm = norm and inner != "adam"
    ours, theirs = INNER_OF_PYTORCH[inner]
    learner, batch = make_learner(norm, inner=ours, inner_steps=steps, engine=engine), tasks()
    rows = learner.rows(batch).jacobian
    for slot, task in enumerate(batch):
        found = {name: block[slot] for name, block in rows.items()}
        assert_rows_are_displacements(found, learner, train_copy(learner, theirs, task, steps), LR * max(steps, 1))


def test_with_unscaled_displacements_an_outer_sgd_takes_the_published_step():
    learner, batch, epsilon = make_learner(inner_steps=3, scale=1 / 3), tasks(), 0.7
    models = [train_copy(learner, INNER_OF_PYTORCH["sgd"][1], task, 3) for task in batch]
    before = {name: p.detach().clone() for name, p in learner.named_parameters().items()}
    learner.step(batch, torch.optim.SGD(learner.parameters(), lr=epsilon))
    for name, parameter in learner.named_parameters().items():
        mean = torch.stack([model.get_parameter(name) for model in models]).mean(0)
        torch.testing.assert_close(parameter, before[name] + epsilon * (mean - before[name]))


def test_on_all_uses_both_sets_in_training_and_the_support_set_at_meta_test():
    batch = tasks()
    x, y = torch.cat([batch.support_x, batch.query_x], 1), torch.cat([batch.support_y, batch.query_y], 1)
    both = make_learner(True).rows(TaskBatch(x, y, batch.query_x, batch.query_y))
    checks.assert_rows_equal(make_learner(True, on="all").rows(batch), both)
    assert make_learner(True, on="all").evaluate(batch) == make_learner(True).evaluate(batch)


def test_parameters_that_are_not_adapted_have_zero_rows():
    rows = make_learner(adapt="encoder.*").rows(tasks()).jacobian
    assert torch.equal(rows["head.weight"], torch.zeros(3, 3, 4, dtype=torch.float64))
    assert float(rows["encoder.0.weight"].abs().min()) > 0


# -- minibatches -----------------------------------------------------------------------------------------------------


class InputRecorder(nn.Module):
    """Records its inputs."""

    def __init__(self):
        super().__init__()
        self.inputs = []

    def forward(self, x):
        self.inputs.append(x.detach().clone())
        return x


def make_recording_learner(**options):
    encoder, head = networks()
    return Reptile(nn.Sequential(InputRecorder(), *encoder), head, inner_lr=LR, engine="loop", **options)


def labels(task, x):
    """Labels of some support inputs."""
    return torch.stack([task.support_y[(task.support_x == one).all(1)][0] for one in x])


@pytest.mark.parametrize("on", ["support", "all"])
def test_minibatches_are_split_shuffles_of_all_examples(on):
    learner, task = make_recording_learner(inner_steps=6, inner_batch=2, on=on), tasks(1)[0]
    learner.rows([task])
    examples = task.support_x if on == "support" else torch.cat([task.support_x, task.query_x])
    *steps, queries = learner.encoder[0].inputs
    assert torch.equal(queries, task.query_x)
    assert [len(one) for one in steps] == [2] * 6
    drawn = torch.cat(steps)
    for epoch in drawn.split(len(examples)):
        places = [int((examples == one).all(1).nonzero()) for one in epoch]
        assert len(set(places)) == len(epoch)
    if on == "support":
        assert not torch.equal(drawn[:6], drawn[6:])


def test_rows_of_minibatches_are_displacements_by_an_optimizer_of_pytorch():
    learner, task = make_recording_learner(inner_steps=4, inner_batch=4), tasks(1)[0]
    rows = learner.rows([task]).jacobian
    examples = [(x, labels(task, x)) for x in learner.encoder[0].inputs[:-1]]
    model = train_copy(learner, INNER_OF_PYTORCH["sgd"][1], task, 4, examples)
    assert_rows_are_displacements({name: block[0] for name, block in rows.items()}, learner, model, LR * 4)


def test_minibatches_depend_on_step_and_seed():
    def encoder_inputs(learner):
        learner.encoder[0].inputs.clear()
        learner.rows(batch)
        return torch.cat(learner.encoder[0].inputs)

    batch = tasks()
    learner, other = (make_recording_learner(inner_batch=2, seed=seed) for seed in (0, 1))
    state = torch.get_rng_state()  # after the initialization of the networks
    outer = torch.optim.SGD(learner.parameters(), lr=LR)
    first = encoder_inputs(learner)
    assert torch.equal(encoder_inputs(learner), first)
    assert not torch.equal(encoder_inputs(other), first)
    predicted = learner.predict(batch[0].support_x, batch[0].support_y, batch[0].query_x)
    at_test = learner.encoder[0].inputs[-6:]
    learner.step(batch, outer)
    assert not torch.equal(encoder_inputs(learner), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert predicted.shape == (9, 3)
    learner.predict(batch[0].support_x, batch[0].support_y, batch[0].query_x)
    assert all(map(torch.equal, learner.encoder[0].inputs[-6:], at_test))


# -- the inner optimizer's state -------------------------------------------------------------------------------------


def make_stateful_learner(**options):
    return make_learner(inner=torchopt.adam(lr=LR, betas=BETAS), inner_steps=3, keep_state=True, **options)


def test_a_kept_state_equals_one_torch_optimizer_for_all_tasks():
    learner = make_stateful_learner()
    outer = torch.optim.SGD(learner.parameters(), lr=1.0)
    model = copied(learner)
    adam = torch.optim.Adam(model.parameters(), lr=LR, betas=BETAS)
    for seed in (1, 2):
        batch = tasks(seed=seed)
        rows = learner.rows(batch).jacobian
        again = learner.rows(batch).jacobian
        assert all(torch.equal(rows[name], again[name]) for name in rows)
        for slot, task in enumerate(batch):
            model.load_state_dict({name: p.detach() for name, p in learner.named_parameters().items()})
            train(model, adam, task, 3)
            assert_rows_are_displacements({name: block[slot] for name, block in rows.items()}, learner, model, LR * 3)
        learner.step(batch, outer)


def test_a_kept_state_starts_meta_test_and_depends_on_the_order_of_tasks():
    learner, batch = make_stateful_learner(), tasks()
    task = batch[0]
    fresh = make_learner(inner=torchopt.adam(lr=LR, betas=BETAS), inner_steps=3)
    learner.step(batch, torch.optim.SGD(learner.parameters(), lr=0.0))
    kept, new = (one.predict(task.support_x, task.support_y, task.query_x) for one in (learner, fresh))
    assert not torch.allclose(kept, new)
    assert torch.equal(learner.predict(task.support_x, task.support_y, task.query_x), kept)
    turned = learner.rows([batch[2], batch[1], batch[0]]).jacobian["head.weight"]
    assert not torch.allclose(turned.flip(0), learner.rows(batch).jacobian["head.weight"])


@pytest.mark.parametrize("part", ["support_x", "query_x"])
def test_a_dropped_task_does_not_change_the_kept_state(part):
    batch = tasks()
    broken = copy.deepcopy(batch)
    getattr(broken, part)[1, 0] = torch.nan
    one, two = make_stateful_learner(), make_stateful_learner()
    one.homogenizers.nonfinite = "drop"
    one.step(broken, torch.optim.SGD(one.parameters(), lr=LR))
    two.step([batch[0], batch[2]], torch.optim.SGD(two.parameters(), lr=LR))
    checks.assert_rows_equal(one.rows(batch), two.rows(batch))


def test_a_kept_state_of_later_frozen_parameters_raises():
    learner = make_stateful_learner()
    learner.encoder[0].bias.requires_grad_(False)
    with pytest.raises(OptionError, match=r"encoder\.0\.bias was frozen later"):
        learner.rows(tasks())


# -- properties of every learner -------------------------------------------------------------------------------------


def test_predictions_are_those_of_the_adapted_network():
    learner, task = make_learner(True, test_steps=4), tasks()[0]
    found = learner.predict(task.support_x, task.support_y, task.query_x)
    model = train_copy(learner, INNER_OF_PYTORCH["sgd"][1], task, 4)
    torch.testing.assert_close(found, model["head"](model["encoder"](task.query_x)).detach())


def test_a_transform_is_updated_and_changes_no_row():
    plain, rotated = make_learner(inner_steps=2), make_learner(homogenizers="rotate(lr=0.5)", inner_steps=2)
    for name, block in plain.rows(tasks()).jacobian.items():
        torch.testing.assert_close(rotated.rows(tasks()).jacobian[name], block)
    before = copy.deepcopy(rotated.homogenizers.state_dict())
    rotated.step(tasks(), torch.optim.SGD(rotated.parameters(), lr=0.1))
    assert str(rotated.homogenizers.state_dict()) != str(before)
