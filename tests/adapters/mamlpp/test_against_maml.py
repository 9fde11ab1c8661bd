"""MAML++ equals MAML if its parts are disabled or not yet trained."""

from __future__ import annotations

import pytest
import torch
import torchopt

from gradhomog_adapters.maml import MAML
from gradhomog_adapters.mamlpp import MAMLPP
from tests.adapters.few_shot import networks, tasks
from tests.adapters.mamlpp.learners import OFF


@pytest.mark.parametrize("norm", ["batch", "support", "frozen"])
@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize(
    "inner", ["sgd", "momentum", "adam", torchopt.sgd(lr=0.1, weight_decay=0.05)], ids=["sgd", "momentum", "adam", "wd"]
)
def test_with_every_part_off_rows_and_predictions_are_those_of_maml_bit_for_bit(norm, first_order, inner):
    common = {"inner": inner, "inner_lr": 0.1, "inner_steps": 3, "norm": norm, "engine": "loop", "test_steps": 4}
    ours = MAMLPP(*networks(True), **common, **OFF, first_order_steps=int(first_order))
    theirs = MAML(*networks(True), **common, first_order=first_order)
    batch = tasks()
    found, expected = ours.rows(batch), theirs.rows(batch)
    assert list(found.jacobian) == list(expected.jacobian)
    assert all(torch.equal(found.jacobian[name], rows) for name, rows in expected.jacobian.items())
    assert torch.equal(found.losses, expected.losses)
    assert torch.equal(found.feature_grads[0], expected.feature_grads[0])
    assert ours.evaluate(batch) == theirs.evaluate(batch)


@pytest.mark.parametrize("part", [{"learn_rates": True}, {"step_norm": True}])
def test_a_part_that_has_not_been_trained_yet_changes_no_loss(part):
    # All rates start at inner_lr. Scales and shifts start equal in all steps, and are not adapted.
    batch, common = tasks(), {"inner_lr": 0.1, "inner_steps": 2}
    ours = MAMLPP(*networks(True), **common, **{**OFF, **part})
    theirs = MAML(*networks(True), **common, adapt=["encoder.[03].*", "head.*"] if "step_norm" in part else "*")
    torch.testing.assert_close(ours.rows(batch).losses, theirs.rows(batch).losses, rtol=1e-12, atol=0)


def test_first_order_ends_after_its_steps():
    learner, batch = MAMLPP(*networks(True), **OFF, inner_steps=2, inner_lr=0.1, first_order_steps=2), tasks()
    outer = torch.optim.SGD(learner.parameters(), lr=0.0)
    expected = {order: MAML(*networks(True), inner_steps=2, inner_lr=0.1, first_order=order).rows(batch).jacobian
                for order in (True, False)}  # fmt: skip
    for first_order in (True, True, False):
        found = learner.rows(batch).jacobian
        for name, rows in expected[first_order].items():
            torch.testing.assert_close(found[name], rows, rtol=1e-9, atol=1e-12)
        learner.step(batch, outer)
