"""The base class of the field's benchmarks: shared and separate inputs, single-task training, the averaged protocol."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from gradhomog import ConfigError
from gradhomog_data.problems._benchmark import Benchmark, SharedNetwork
from tests.data.problems.conftest import problem_run

TASKS = ("first", "second")


class Error:
    """The mean absolute error of a task."""

    def __init__(self, name):
        self.name, self.errors = name, []

    def update(self, outputs, targets):
        self.errors.append((outputs - targets).abs())

    def scores(self):
        return {self.name: float(torch.cat(self.errors).mean())}


def make_network():
    shared = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())
    return SharedNetwork(shared, {task: nn.Linear(4, 1) for task in TASKS})


class Lines(Benchmark):
    """Two regressions of ten examples, with common or separate inputs."""

    metric, fingerprint = "error", "lines"

    def __init__(self, run, *, separate=False, **options):
        super().__init__(run, TASKS, make_network, 10, 4, **options)
        self.inputs = torch.randn(2, 10, 3, generator=torch.Generator().manual_seed(0))
        self.separate = separate

    def pick(self, chosen):
        first = self.inputs[0, chosen]
        second = self.inputs[1, chosen] if self.separate else first
        return {"first": (first, first[:, :1]), "second": (second, 3 * second[:, 1:2])}

    def batch(self, index):
        return self.pick(self.indices(index, 10))

    def chunks(self, split):
        yield self.pick(slice(0, 7))
        if split == "test":
            yield self.pick(slice(7, 10))

    def loss(self, task, outputs, targets):
        return mse_loss(outputs, targets)

    def meters(self):
        return {task: Error(task) for task in TASKS}


def trained(problem, steps, start=0, rate=0.1):
    optimizer = torch.optim.SGD(problem.parameters(), lr=rate)
    return [problem.step(index, optimizer, inspect=True) for index in range(start, start + steps)]


def run(homogenizers="none"):
    return problem_run(homogenizers=homogenizers)


def same(one, other):
    for first, second in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize("separate", [False, True])
def test_the_plain_step_is_the_mean_gradient_of_the_shared_part_and_the_own_gradient_of_heads(separate):
    problem = Lines(run(), separate=separate)
    network = copy.deepcopy(problem.networks[0])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for index in range(3):
        batch = problem.batch(index)
        losses = [mse_loss(network.heads[task](network.shared(x)), y) for task, (x, y) in batch.items()]
        optimizer.zero_grad()
        (sum(losses) / 2).backward()
        for parameter in network.heads.parameters():
            parameter.grad *= 2
        optimizer.step()
    trained(problem, 3)
    same(problem.networks[0], network)


def test_common_inputs_pass_the_shared_part_once_and_separate_ones_separately():
    for separate, expected in ((False, 1), (True, 2)):
        problem = Lines(run(), separate=separate)
        trained(problem, 1)
        assert problem.networks[0].shared[1].num_batches_tracked == expected


def test_single_task_training_starts_from_the_shared_network_and_shares_nothing():
    shared, single = Lines(run()), Lines(run("single-task"))
    for network, task in zip(single.networks, TASKS, strict=True):
        same(network.shared, shared.networks[0].shared)
        same(network.heads[task], shared.networks[0].heads[task])
        assert list(network.heads) == [task]
    alone = copy.deepcopy(single.networks[1])
    (report,) = trained(single, 1)
    x, y = single.batch(0)["second"]
    mse_loss(alone.heads["second"](alone.shared(x)), y).backward()
    with torch.no_grad():
        for parameter in alone.parameters():
            parameter -= 0.1 * parameter.grad
    same(single.networks[1], alone)
    assert report.names == TASKS


@pytest.mark.parametrize("text", ["none", "pcgrad", "famo", "single-task"])
def test_a_resumed_training_is_the_uninterrupted_one(text):
    whole, first, second = (Lines(run(text), validates_on="test", averaged_epochs=3) for _ in range(3))
    for problem, start, steps in ((whole, 0, 2), (whole, 2, 2), (first, 0, 2)):
        trained(problem, steps, start)
        problem.validate()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    trained(second, 2, start=2)
    second.validate()
    same(second.network, whole.network)
    assert second.test([]) == whole.test([])


def test_every_epoch_is_a_new_permutation_without_the_examples_that_do_not_fill_a_batch():
    problem = Lines(run())
    epochs = [[*problem.indices(2 * epoch, 10), *problem.indices(2 * epoch + 1, 10)] for epoch in range(3)]
    assert all(len({*map(int, epoch)}) == 8 for epoch in epochs)
    assert len({tuple(map(int, epoch)) for epoch in epochs}) == 3
    assert {*map(int, problem.indices(0, 3))} == {0, 1, 2}  # a task with fewer examples than the batch
    assert any((problem.indices(index, 10) != problem.indices(index, 10, 1)).any() for index in range(2))


def test_scores_are_means_over_examples_or_over_the_last_validations_on_the_test_data():
    held_out, averaged = Lines(run()), Lines(run(), validates_on="test", averaged_epochs=2)
    network = held_out.networks[0].eval()
    x = held_out.inputs[0]
    targets = {task: y for task, (_, y) in held_out.pick(slice(10)).items()}
    expected = [mse_loss(network.heads[task](network.shared(x)), y).item() for task, y in targets.items()]
    assert held_out.test([]).losses == pytest.approx(expected)
    found = []
    for index in range(3):
        trained(averaged, 1, index)
        found.append(averaged.validate().scores)
    assert averaged.test([]).scores == pytest.approx([(b + c) / 2 for _, b, c in zip(*found, strict=True)])
    assert (held_out.metadata()["held_out"], averaged.metadata()["held_out"]) == (True, False)
    assert (held_out.state_selection, averaged.state_selection) == ("best", "last")


def test_each_single_task_network_is_tested_in_its_own_best_state():
    # Seen: the state was that of the best mean over all networks, so that Δm compared with too large errors.
    problem, found, tested = Lines(run("single-task")), [], []
    for index in range(8):
        trained(problem, 1, index, rate=0.5)
        tested.append(problem.evaluate("test"))
        found.append(problem.validate().scores)
        if index == 3:  # of a resumed training too
            resumed = Lines(run("single-task"))
            resumed.load_state_dict(copy.deepcopy(problem.state_dict()))
            problem = resumed
    best = [min(range(8), key=lambda index: found[index][task]) for task in range(2)]
    assert len({*best, 7}) == 3
    assert problem.state_selection == "last"
    assert problem.test([]).scores == [tested[index][task][task] for index, task in zip(best, TASKS, strict=True)]


def test_named_metrics_are_additional_scores_and_the_scores_are_losses(tmp_path):
    problem = Lines(run())
    problem.test([])
    assert problem.write_artifacts(tmp_path) == {}
    problem.named_metrics = {"first": "error", "second": "error"}
    result = problem.test([])
    assert result.scores == result.losses
    written = problem.write_artifacts(tmp_path)
    assert written["additional_metrics"] == {"first": "error", "second": "error"}
    assert written["additional_scores"] == {name: problem.evaluate("test")[name][name] for name in TASKS}


def test_measured_rows_are_those_of_the_shared_part_and_change_nothing():
    problem = Lines(run())
    before = copy.deepcopy(problem.network.state_dict())
    rows, names, examples = problem.rows(0)
    assert {name: tuple(value.shape) for name, value in rows.items()}["0.0.weight"] == (2, 4, 3)
    assert len(rows) == 4
    assert (tuple(names), examples) == (TASKS, 4)
    for name, value in problem.network.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_problem_decides_about_the_mode_of_its_modules():
    # Seen: each step put all modules into training mode, also a batch normalization that a plugin had frozen.
    problem = Lines(problem_run())
    frozen = problem.network[0].shared[1].eval()
    before = frozen.running_var.clone()
    problem.step(0, torch.optim.SGD(problem.parameters(), lr=0.1), inspect=False)
    problem.rows(0)
    assert not frozen.training
    assert torch.equal(frozen.running_var, before)


def test_homogenizers_within_the_network_and_of_features_are_refused():
    for text, reason in (
        ("rotograd", "acts within"),
        ("isi", "acts within"),
        ("mgda(on='features')", "reads features"),
    ):
        with pytest.raises(
            ConfigError, match=rf"{reason}.* a network, which the problem `tested` does not offer: meth"
        ):
            Lines(run(text))
