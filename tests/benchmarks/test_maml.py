"""The benchmark of MAML: all workloads compute the same meta-step, and the table has the documented rows."""

from __future__ import annotations

import pytest
import torch

from gradhomog import OptionError
from tests.benchmarks import maml, maml_peers
from tests.benchmarks.maml import BENCHMARK, Cosine, MetaStep, gradient, workloads
from tests.benchmarks.maml_inputs import Setting
from tests.benchmarks.maml_peers import BY_HAND, PEERS, Peer

pytestmark = pytest.mark.slow

SINUSOIDS, IMAGES = (3, 4), (2, 3, 16, 4)
LEARNERS = ["maml", "maml(engine='loop')", "maml(engine='vmap')", "maml(recompute=true)"]
QUICK = {"rounds": 3, "seconds": 0.01}

both = pytest.mark.parametrize("shape", [SINUSOIDS, IMAGES], ids=["sinusoids", "images"])


def found(workload, batch):
    workload(batch)
    return gradient(workload.network)


@both
def test_all_second_order_workloads_compute_the_same_gradient_in_float64(shape):
    setting = Setting(shape, torch.float64)
    made, _ = workloads(LEARNERS, setting)
    batch = setting.batch(1)
    expected = found(made[BY_HAND], batch)
    assert set(made) == {*PEERS, *LEARNERS}
    for label in set(made) - {"hand-written, first order"}:
        torch.testing.assert_close(found(made[label], batch), expected, rtol=1e-9, atol=1e-11, msg=label)


@both
def test_both_first_order_workloads_compute_the_same_other_gradient(shape):
    setting = Setting(shape, torch.float64)
    made, _ = workloads(["maml(first_order=true)"], setting)
    batch = setting.batch(1)
    ours, theirs = found(made["maml(first_order=true)"], batch), found(made["hand-written, first order"], batch)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    assert not torch.allclose(ours, found(made[BY_HAND], batch), rtol=1e-3)


def test_the_hand_written_gradient_is_that_of_the_query_loss_after_the_inner_loop():
    setting = Setting(SINUSOIDS, torch.float64)
    network, batch = setting.network(), setting.batch(0)
    expected = found(Peer(maml_peers.by_hand, network), batch)
    direction = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    start = torch.nn.utils.parameters_to_vector(network.parameters()).detach()

    def loss(step):
        total = 0.0
        for task in batch:
            torch.nn.utils.vector_to_parameters(start + step * direction, network.parameters())
            inner = torch.optim.SGD(network.parameters(), lr=maml_peers.RATE)
            for _ in range(maml_peers.STEPS):
                inner.zero_grad()
                torch.nn.functional.mse_loss(network(task.support_x), task.support_y).backward()
                inner.step()
            total += torch.nn.functional.mse_loss(network(task.query_x), task.query_y).item()
        return total / len(batch)

    difference = (loss(1e-6) - loss(-1e-6)) / 2e-6
    assert difference == pytest.approx(float(expected @ direction), rel=1e-5)


@both
def test_a_step_does_not_change_the_parameters(shape):
    setting = Setting(shape)
    start = [p.detach().clone() for p in setting.network().parameters()]
    for workload in workloads(["maml"], setting)[0].values():
        workload(setting.batch(0))
        assert all(torch.equal(p, q) for p, q in zip(workload.network.parameters(), start, strict=True))


def test_channels_last_computes_the_same_gradient():
    setting = Setting(IMAGES, torch.float64)
    batch = setting.batch(0)
    plain, other = MetaStep("maml", setting.network()), MetaStep("maml", setting.network(), channels_last=True)
    torch.testing.assert_close(found(other, batch), found(plain, batch), rtol=1e-9, atol=1e-11)


def test_the_cosine_of_an_approximation_is_below_that_of_the_exact_gradient():
    setting = Setting(IMAGES)
    cosine, batch = Cosine(setting), setting.batch(0)
    exact, rough = MetaStep("maml", setting.network()), MetaStep("maml(autocast='bfloat16')", setting.network())
    for workload in (exact, rough):
        workload(batch)
    assert cosine(exact) == pytest.approx(1, abs=1e-6)
    assert 0.5 < cosine(rough) < 1 - 1e-5
    assert cosine(lambda batch: None) is None


def test_the_default_tables_have_peers_learners_rows_only_and_channels_last(monkeypatch):
    monkeypatch.setattr(maml, "FOR_SINUSOIDS", ('maml(engine="loop")',))  # compiling takes half a minute
    sinusoids, images = BENCHMARK([], [SINUSOIDS, IMAGES], **QUICK)
    common = [*PEERS, "maml", "maml(recompute=true)", "maml(first_order=true)"]
    labels = [row.label for row in sinusoids.table.rows]
    assert labels == [*common, 'maml(engine="loop")', 'maml(engine="vmap")', maml.ROWS]
    rows = {row.label: row for row in images.table.rows}
    assert list(rows) == [*common, 'maml(autocast="bfloat16")', 'maml(engine="vmap")', maml.ROWS, maml.CHANNELS_LAST]
    assert images.table.added_bytes(rows["hand-written, losses summed"]) > 0
    assert [column.title for column in images.columns] == ["to TorchOpt MetaSGD", "to higher", "cosine"]
    cosine = images.columns[-1].values
    assert cosine == {label: pytest.approx(1, abs=0.05) for label in rows if label != maml.ROWS}
    assert "2 tasks with 5 ways, 5 shots, 15 queries, 1 thread" in images.table.title


def test_workloads_that_keep_all_graphs_are_omitted_for_large_images(monkeypatch):
    monkeypatch.setattr(maml, "LARGEST_AT_ONCE", 2 * 16 * 16 * 4 - 1)
    made, notes = workloads([], Setting(IMAGES))
    assert {"hand-written, losses summed", maml.VECTORIZED}.isdisjoint(made)
    assert "maml(recompute=true)" in made
    assert notes == ["Workloads that keep the graphs of all tasks are omitted: for these images they need gigabytes."]


def test_a_learner_is_compiled_before_timing(monkeypatch):
    calls = []
    monkeypatch.setattr("gradhomog.learners.learner.Learner.step", lambda learner, batch, outer: calls.append(learner))
    made, _ = workloads(["maml", "maml(compile=true)"], Setting(SINUSOIDS))
    assert calls == [made["maml(compile=true)"].learner]


def test_a_learner_that_cannot_be_compiled_is_omitted_with_the_reason(monkeypatch):
    def fail(learner, batch, outer):
        raise OptionError("no C++ compiler found\nand much more")

    monkeypatch.setattr("gradhomog.learners.learner.Learner.step", fail)
    made, notes = workloads(["maml(compile=true)"], Setting(SINUSOIDS))
    assert set(made) == set(PEERS)
    assert notes == ["maml(compile=true) is omitted: no C++ compiler found"]


def test_a_learner_of_another_distribution_can_be_timed(gradhomog_install):
    gradhomog_install("fixed-dist", FIXED, plugin="fixed", kind="learners")
    (comparison,) = BENCHMARK(["fixed"], [SINUSOIDS], **QUICK)
    assert comparison.table.rows[-1].label == "fixed"


FIXED = """
import gradhomog, torch
class Fixed(gradhomog.Learner):
    def task_row(self, task, key):
        parameters = self.named_parameters()
        features = self.encoder(task.query_x)
        outputs = self.head(features)
        loss = self.loss(outputs, task.query_y)
        found = torch.autograd.grad(loss, list(parameters.values()))
        gradients = dict(zip(parameters, found, strict=True))
        return gradhomog.TaskRow(loss.detach(), gradients, outputs.detach(), [features.detach()], [features.detach()])
    def adapted_outputs(self, support_x, support_y, query_x):
        return self.head(self.encoder(query_x))
@gradhomog.hookimpl
def gradhomog_learner():
    return gradhomog.LearnerSpec(factory=Fixed, summary="does not adapt")
"""
