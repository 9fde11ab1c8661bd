"""Baseline and Baseline++: rows over all training classes, and the fit at meta-test against torch.optim."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import DataError, TaskBatch
from gradhomog_adapters._classifiers import CosineClassifier, fit, make_linear
from gradhomog_adapters.baseline import Baseline
from gradhomog_adapters.baseline_pp import BaselinePP
from tests.adapters import checks
from tests.adapters.checks import CLASSES


def reference_outputs(learner, z):
    """Outputs of the training classifier, from its formula."""
    own = dict(learner.extra_modules["classifier"].named_parameters())
    if "weight" in own:
        return z @ own["weight"].T + own["bias"]
    cosines = nn.functional.cosine_similarity(z[:, None], own["direction"][None], dim=2)
    return 2 * own["length"][:, 0] * cosines


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("kind", [Baseline, BaselinePP])
def test_rows_are_the_cross_entropy_over_all_training_classes(kind, engine):
    encoder, head = checks.networks()
    learner = kind(encoder, head, classes=CLASSES, engine=engine)

    def loss(task):
        x = torch.cat([task.support_x, task.query_x])
        y = task.classes[torch.cat([task.support_y, task.query_y])]
        return nn.functional.cross_entropy(reference_outputs(learner, encoder(x)), y)

    checks.assert_rows_match_autograd(learner, checks.tasks(classes=CLASSES), loss)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_training_accuracies_are_over_the_classes_of_each_task(engine):
    encoder, head = checks.networks()
    learner = Baseline(encoder, head, classes=CLASSES, engine=engine)
    batch = checks.tasks(classes=CLASSES)
    expected = []
    for task in batch:
        outputs = reference_outputs(learner, encoder(task.query_x))[:, task.classes]
        expected.append(float((outputs.argmax(1) == task.query_y).double().mean()))
    assert learner.rows(batch).accuracies.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("kind", [Baseline, BaselinePP])
def test_without_classes_labels_are_used_directly(kind):
    torch.manual_seed(0)
    encoder, head = checks.networks()
    plain = kind(encoder, head)
    numbered = kind(encoder, head, classes=checks.WAYS)
    numbered.extra_modules.load_state_dict(plain.extra_modules.state_dict())
    batch = checks.tasks()
    same = torch.arange(checks.WAYS).expand(len(batch), -1)
    named = TaskBatch(batch.support_x, batch.support_y, batch.query_x, batch.query_y, batch.domains, same)
    checks.assert_rows_equal(numbered.rows(named), plain.rows(batch))


MISSING = "the tasks have no `classes`, and {} has classes=7"


@pytest.mark.parametrize(
    ("name", "options", "classes", "message"),
    [
        ("baseline", {}, [0, 1, 2], "the tasks have `classes`.*has no option `classes`"),
        ("baseline", {"classes": 5}, [0, 1, 5], r"`classes` of tasks must be in 0\.\.4; got 0\.\.5"),
        ("baseline", {"classes": 5}, [-1, 1, 2], r"`classes` of tasks must be in 0\.\.4; got -1\.\.2"),
        ("baseline", {"classes": CLASSES}, None, MISSING.format("Baseline")),
        ("mtl", {"classes": CLASSES, "pretrain_steps": 1}, None, MISSING.format("MTL")),
        ("skd", {"classes": CLASSES}, None, MISSING.format("SKD")),
        ("mtl", {"classes": CLASSES, "pretrain_steps": 1}, "regression", "MTL supports classification only"),
        ("skd", {"classes": CLASSES}, "regression", "SKD supports classification only"),
    ],
)
def test_missing_and_invalid_class_indices_and_regression_raise(name, options, classes, message):
    batch = checks.class_tasks(count=1)
    if classes == "regression":
        batch = replace(batch, support_y=batch.support_x[..., 0, 0], query_y=batch.query_x[..., 0, 0])
    else:
        batch = replace(batch, classes=classes and torch.tensor([classes]))
    with pytest.raises(DataError, match=message):
        gradhomog.learner(name, *checks.image_networks(flatten=True), **options).rows(batch)


# -- the classifiers -------------------------------------------------------------------------------------------------


def test_dead_features_have_outputs_and_derivatives_of_zero_in_baseline_pp():
    encoder = nn.Sequential(nn.Linear(3, 5), nn.ReLU()).double()
    nn.init.constant_(encoder[0].bias, -100.0)
    learner = BaselinePP(encoder, nn.Linear(5, 3).double(), classes=CLASSES)
    rows = learner.rows(checks.tasks(classes=CLASSES))
    assert not any(block.any() for block in rows.jacobian.values())
    torch.testing.assert_close(rows.losses, torch.full((3,), math.log(CLASSES), dtype=torch.float64))


@pytest.mark.parametrize(("outputs", "scale"), [(5, 2.0), (200, 2.0), (201, 10.0)])
def test_the_scale_is_2_for_up_to_200_classes_and_10_for_more(outputs, scale):
    assert CosineClassifier(3, outputs).scale == scale
    assert CosineClassifier(3, outputs, 4.0).scale == 4.0


@pytest.mark.parametrize("make", [make_linear, CosineClassifier])
def test_the_fit_is_that_of_torch_optim_with_the_published_constants(make):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(10, 5, dtype=torch.float64), torch.arange(10) % 3
    ours, theirs = (make(5, 3, generator=torch.Generator().manual_seed(1)).double() for _ in range(2))
    fit(ours, x, y, nn.functional.cross_entropy, generator, lr=0.01, epochs=20, batch=4)
    outer = torch.optim.SGD(theirs.parameters(), lr=0.01, momentum=0.9, dampening=0.9, weight_decay=0.001)
    generator.manual_seed(0)
    for _ in range(20):
        order = torch.randperm(10, generator=generator)
        for first in range(0, 10, 4):
            chosen = order[first : first + 4]
            outer.zero_grad()
            nn.functional.cross_entropy(theirs(x[chosen]), y[chosen]).backward()
            outer.step()
    for (name, one), two in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.detach(), two.detach(), rtol=1e-12, atol=1e-14, msg=name)


# -- meta-test -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Baseline, BaselinePP])
def test_predictions_do_not_depend_on_the_training_classifier(kind):
    encoder, head = checks.networks()
    task = checks.tasks()[0]
    found = []
    for classes in (CLASSES, 2):
        learner = kind(encoder, head, classes=classes, test_epochs=5)
        found.append(learner.predict(task.support_x, task.support_y, task.query_x))
    assert torch.equal(*found)


def test_the_fit_depends_on_the_seed_and_not_on_earlier_tasks():
    task = checks.tasks()[0]
    one, again, other = (Baseline(*checks.networks(), test_epochs=5, seed=seed) for seed in (0, 0, 1))
    first = one.predict(task.support_x, task.support_y, task.query_x)
    assert torch.equal(one.predict(task.support_x, task.support_y, task.query_x), first)
    assert torch.equal(again.predict(task.support_x, task.support_y, task.query_x), first)
    assert not torch.equal(other.predict(task.support_x, task.support_y, task.query_x), first)
