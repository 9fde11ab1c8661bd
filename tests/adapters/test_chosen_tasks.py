"""A learner computes the rows of chosen tasks only; slots and domains of the others are kept."""

from __future__ import annotations

import pytest
import torch

import gradhomog
from gradhomog import DataError, MomentumWarning, TaskBatch
from gradhomog.step.step import make_step
from gradhomog.testing import small_network
from gradhomog_adapters.maml import MAML


def learner(pipe, **options):
    return MAML(*small_network.network(), pipe, inner_steps=1, **options)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_step_computes_the_row_of_one_task_in_turn(engine):
    pipe, by_hand = gradhomog.pipeline("tracked(method='upgrad')"), gradhomog.pipeline("tracked(method='upgrad')")
    trained = learner(pipe, engine=engine)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    for number in range(5):
        batch, slot = small_network.batch(number), number % 3
        rows = learner(None, engine=engine)
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
    trained = learner("tracked")
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
    ("optimizer", "warns"),
    [
        (lambda p: torch.optim.Adam(p), True),
        (lambda p: torch.optim.Adam(p, betas=(0.0, 0.999)), False),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), True),
        (lambda p: torch.optim.SGD(p, lr=0.1), False),
    ],
)
def test_momentum_of_the_outer_optimizer_warns(optimizer, warns, recwarn):
    trained = learner("tracked")
    trained.step(small_network.batch(), optimizer(trained.parameters()))
    found = [str(one.message) for one in recwarn.list if issubclass(one.category, MomentumWarning)]
    assert len(found) == warns
    assert all("tracked averages rows over steps" in message for message in found)


@pytest.mark.parametrize("pipe", ["pcgrad", "tracked(average=0)"])
def test_momentum_does_not_warn_without_averages(recwarn, pipe):
    trained = learner(pipe)
    trained.step(small_network.batch(), torch.optim.Adam(trained.parameters()))
    assert not recwarn.list
