"""Steps of a learner: calls of begin, rows after each stage, probes, and steps of chosen tasks."""

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import DataError, Homogenizer, MomentumWarning, OptionError, TaskBatch
from gradhomog.step.step import make_step
from gradhomog.testing import small_network
from gradhomog_adapters.maml import MAML
from tests.adapters.checks import networks, tasks


def learner(homogenizers, **options):
    return MAML(*networks(True), homogenizers, inner_steps=2, **options)


class Halve(Homogenizer):
    def transform(self, features, keys):
        return features / 2

    def measured(self, step):
        return {"factor": 0.5}


class Noise(Homogenizer):
    """Scales features by a random factor from the generator of `begin`."""

    def __init__(self):
        self.drawn = []

    def begin(self, key, part, generator):
        if part == "query":
            self.drawn.append(float(torch.rand(1, generator=generator)))

    def transform(self, features, keys):
        return features * self.drawn[-1]


def test_a_report_describes_the_rows_after_each_stage_and_the_measurements():
    model = learner([Halve(), "static(weights=[1, 2, 3])", "pcgrad", Halve()])
    report = model.step(tasks(), torch.optim.SGD(model.parameters(), lr=0.1))
    assert [stage.name for stage in report.stages] == ["static", "pcgrad"]
    torch.testing.assert_close(report.stages[0].norms, report.norms * torch.tensor([1, 2, 3]).double() / 2)
    torch.testing.assert_close(report.stages[0].cosines, report.cosines)
    assert dict(report.measured) == {"Halve": {"factor": 0.5}, "Halve#2": {"factor": 0.5}}
    assert report.record()["stages"][1]["name"] == "pcgrad"


def test_a_probe_reports_the_encoders_rows_with_each_prefix_of_the_pipeline():
    model = learner([Halve(), "static(weights=[1, 2, 3])"])
    batch = tasks()
    plain, halved, weighted = model.probe(batch)
    assert [plain.name, halved.name, weighted.name] == ["plain", "Halve", "static"]
    for found, homogenizers in ((plain, None), (halved, [Halve()])):
        rows = learner(homogenizers).rows(batch).jacobian
        flat = torch.cat([rows[name].flatten(1) for name in rows if name.startswith("encoder.")], dim=1).double()
        torch.testing.assert_close(found.norms, flat.norm(dim=1), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(weighted.norms, halved.norms * torch.tensor([1, 2, 3]).double() / 2)


def test_a_probe_draws_the_same_numbers_for_every_prefix_and_changes_nothing():
    noise = Noise()
    model = learner([noise, Halve(), "gradnorm"])
    model.step(tasks(), torch.optim.SGD(model.parameters(), lr=0.1))
    noise.drawn.clear()
    before = model.state_dict()
    model.probe(tasks())
    assert len(set(noise.drawn)) == 3  # one number for each task, the same with one stage and with two
    assert noise.drawn[:3] == noise.drawn[3:]
    after = model.state_dict()
    assert before["homogenizers"] == after["homogenizers"]
    assert model.homogenizers.steps == 1
    probed = noise.drawn[:3]
    model.step(tasks(), torch.optim.SGD(model.parameters(), lr=0.1))
    assert noise.drawn[6:] == probed  # the same as in the next step
    for part in ("encoder", "head"):
        assert all(torch.equal(before[part][name], after[part][name]) for name in before[part])


def test_targets_reach_the_homogenizers_that_read_features():
    class Reader(Homogenizer):
        def update(self, step):
            seen.append(step.targets)
            return {}

    seen = []
    model = learner([Reader()])
    batch = tasks()
    model.step(batch, torch.optim.SGD(model.parameters(), lr=0.1))
    assert torch.equal(seen[0], torch.stack([task.query_y for task in batch]))
    with pytest.raises(gradhomog.OptionError, match=r"requires the targets of the tasks.*\[tasks, queries\]"):
        gradhomog.pipeline([Reader()]).combine(torch.eye(2))


def test_a_probe_draws_the_same_dropout_masks_and_restores_the_global_generator():
    # Regression test: rows of "plain" and of an identity differed.
    class Identity(Homogenizer):
        def transform(self, features, keys):
            return features

    model = learner([Identity()])
    model.encoder.append(nn.Dropout(0.5))
    state = torch.get_rng_state()
    plain, same = model.probe(tasks())
    assert torch.equal(plain.norms, same.norms)
    assert torch.equal(torch.get_rng_state(), state)


def small_learner(pipe, **options):
    return MAML(*small_network.network(), pipe, inner_steps=1, **options)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_step_computes_the_row_of_one_task_in_turn(engine):
    pipe, by_hand = gradhomog.pipeline("tracked(method='upgrad')"), gradhomog.pipeline("tracked(method='upgrad')")
    trained = small_learner(pipe, engine=engine)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    for number in range(5):
        batch, slot = small_network.batch(number), number % 3
        rows = small_learner(None, engine=engine)
        rows.load_state_dict({**trained.state_dict(), "homogenizers": rows.homogenizers.state_dict()})
        found = rows.rows([batch[slot]])
        pending = by_hand.compute(make_step(found.jacobian, found.losses, slots=[slot]))
        pending.commit()
        report = trained.step(batch, optimizer)
        assert report.tasks == (slot,)
        assert report.names == (f"domain {slot}",)
        torch.testing.assert_close(report.losses, found.losses)
        for name, parameter in trained.named_parameters().items():
            torch.testing.assert_close(parameter.grad, pending.result.direction[name])


def test_a_step_computes_the_tasks_of_one_domain():
    trained = small_learner("tracked")
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    found = []
    for domains in ["bab", "bab", "cac", "bcb"]:
        tasks = [small_network.task(place, domain) for place, domain in enumerate(domains)]
        report = trained.step(tasks, optimizer)
        found.append((report.tasks, report.names))
        assert len(report.losses) == len(report.tasks) == len(report.accuracies)
    assert found == [((0, 2), ("b", "b")), ((1,), ("a",)), ((0, 2), ("c", "c")), ((0, 2), ("b", "b"))]


def test_selected_tasks_keep_their_slots():
    batch = small_network.batch(tasks=4).select([3, 1]).select([1])
    assert batch.keys == (gradhomog.TaskKey(1, "domain 1"),)
    assert torch.equal(batch.query_x[0], small_network.batch(tasks=4).query_x[1])
    assert batch.to("cpu").slots == (1,)
    with pytest.raises(DataError, match="`slots` must contain one position for each of the 1 tasks"):
        TaskBatch(batch.support_x, batch.support_y, batch.query_x, batch.query_y, slots=(0, 1))


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (torch.optim.LBFGS, "without a closure.*got LBFGS"),
        (torch.optim.SparseAdam, "gradients are dense.*SparseAdam refuses them"),
    ],
)
def test_an_outer_optimizer_that_cannot_take_the_step_is_an_error_that_changes_nothing(optimizer, message):
    trained = small_learner("uw")
    with pytest.raises(OptionError, match=message):
        trained.step(small_network.batch(), optimizer(trained.parameters()))
    assert trained.homogenizers.steps == 0
    assert all(parameter.grad is None for parameter in trained.parameters())


@pytest.mark.parametrize(("text", "warns"), [("none", False), ("upgrad", True), ("static(weights=[1, 2])", True)])
def test_lbfgs_warns_unless_its_gradient_is_that_of_the_mean(text, warns, recwarn):
    optimizer = torch.optim.LBFGS([torch.zeros(1, requires_grad=True)])
    gradhomog.check_optimizer(optimizer, gradhomog.pipeline(text))
    assert ["L-BFGS requires the gradient of one fixed loss" in str(one.message) for one in recwarn] == [True] * warns


@pytest.mark.parametrize(
    ("optimizer", "warns"),
    [
        (lambda p: torch.optim.Adam(p), True),
        (lambda p: torch.optim.Adam(p, betas=(0.0, 0.999)), False),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), True),
        (lambda p: torch.optim.SGD(p, lr=0.1), False),
    ],
)
def test_momentum_of_the_outer_optimizer_warns(optimizer, warns, recwarn):
    trained = small_learner("tracked")
    trained.step(small_network.batch(), optimizer(trained.parameters()))
    found = [str(one.message) for one in recwarn.list if issubclass(one.category, MomentumWarning)]
    assert len(found) == warns
    assert all("tracked averages rows over steps" in message for message in found)
