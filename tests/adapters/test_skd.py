"""SKD: both generations against their formulas, the teacher, and logistic regression against scikit-learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, kl_div

from gradhomog import DataError
from gradhomog_adapters.skd import SKD, fit_logistic_regression, rotate_images
from tests.adapters import checks
from tests.adapters.checks import CLASSES, class_tasks

DTYPES = pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])


def make(homogenizers=None, normalized=False, **options):
    return SKD(*checks.image_networks(normalized, flatten=True), homogenizers, **{"classes": CLASSES, **options})


def turned(x, quarters):
    return torch.from_numpy(np.rot90(x.numpy(), quarters, (-2, -1)).copy())


def images_and_classes(task):
    y = task.classes[torch.cat([task.support_y, task.query_y])]
    return torch.cat([task.support_x, task.query_x]), y


# -- generation 0 ----------------------------------------------------------------------------------------------------


def test_rows_of_generation_0_are_those_of_the_written_loss():
    learner = make(rotation_weight=1.5)
    classifier, rotation = learner.extra_modules["classifier"], learner.extra_modules["rotation"]

    def loss(task):
        x, y = images_and_classes(task)
        value = 0
        for quarters in range(4):
            z = classifier(learner.encoder(turned(x, quarters)))
            target = torch.zeros(len(x), 4, dtype=torch.float64)
            target[:, quarters] = 1
            value += cross_entropy(z, y) + 1.5 * binary_cross_entropy_with_logits(rotation(z), target)
        return value / 4

    checks.assert_rows_match_autograd(learner, class_tasks(), loss)


# -- generation 1 ----------------------------------------------------------------------------------------------------


def test_rows_of_generation_1_are_those_of_the_written_loss():
    learner = make(generation0_steps=0, temperature=3.0, distance_weight=0.7)
    checks.perturb(learner.parameters(), 0.2)
    teacher, classifier = learner.extra_modules["teacher"], learner.extra_modules["classifier"]

    def loss(task):
        x, _ = images_and_classes(task)
        z, twin = (classifier(learner.encoder(images)) for images in (x, turned(x, 2)))
        target = (teacher(x) / 3).softmax(1).detach()
        divergence = kl_div((z / 3).log_softmax(1), target, reduction="batchmean")
        return 9 * divergence + 0.7 * (z - twin).square().sum(1).sqrt().mean()

    checks.assert_rows_match_autograd(learner, class_tasks(), loss)


def test_the_distillation_loss_of_equal_networks_is_zero_and_has_no_gradient():
    learner = make(generation0_steps=0, distance_weight=0)
    rows = learner.rows(class_tasks())
    assert float(rows.losses.abs().max()) < 1e-14
    assert all(float(block.abs().max()) < 1e-15 for block in rows.jacobian.values())


def test_the_teacher_is_the_network_after_generation_0_and_never_changes_again():
    learner = make(normalized=True, generation0_steps=2)
    outer = torch.optim.SGD(learner.parameters(), lr=0.1)
    generations, student, teacher = [], [], []
    for seed in range(4):
        learner.step(class_tasks(seed=seed), outer)
        generations.append(learner.generation)
        student.append(str(learner.encoder.state_dict().values()) + str(learner.extra_modules["classifier"].weight))
        part = learner.extra_modules["teacher"]
        teacher.append(str(part.encoder.state_dict().values()) + str(part.classifier.weight))
    remove = ", requires_grad=True"
    assert generations == [0, 1, 1, 1]
    assert teacher[1].replace(remove, "") == student[1].replace(remove, "")
    assert teacher[1] == teacher[2] == teacher[3] != teacher[0]
    assert len(set(student)) == 4


def test_homogenizers_in_the_encoder_do_not_act_on_the_teacher():
    # `isi` changes the features of the student, so its outputs differ from those of an equal teacher.
    losses = []
    for homogenizers in (None, "isi(layers=1)"):
        learner = make(homogenizers, generation0_steps=0, distance_weight=0)
        outer = torch.optim.SGD(learner.parameters(), lr=0.1)
        losses.append(learner.step(class_tasks(), outer).losses.max())
    assert losses[0] < 1e-14
    assert losses[1] > 1e-6


def test_the_teacher_has_no_dropout():
    encoder, head = checks.image_networks(flatten=True)
    encoder.append(nn.Dropout(0.5))
    learner = SKD(encoder, head, classes=CLASSES, generation0_steps=0, engine="loop")
    with learner.mode(training=True):
        one, two = (learner._with_teacher_outputs(class_tasks()[0]) for _ in range(2))
    assert torch.equal(one.support_y, two.support_y)
    assert torch.equal(one.query_y, two.query_y)


# -- both generations ------------------------------------------------------------------------------------------------


# -- logistic regression ---------------------------------------------------------------------------------------------


def test_a_class_without_examples_does_not_change_the_fit_of_the_others():
    generator = torch.Generator().manual_seed(2)
    x, members = torch.randn(6, 4, generator=generator), torch.eye(2).repeat(3, 1)
    weights, bias = fit_logistic_regression(x, members, 1.0)
    wide = nn.functional.pad(members, (1, 0))
    more_weights, more_bias = fit_logistic_regression(x, wide, 1.0)
    torch.testing.assert_close(more_weights[1:], weights, rtol=0, atol=1e-5)
    torch.testing.assert_close(more_bias[1:], bias, rtol=0, atol=1e-5)
    one = fit_logistic_regression(x, torch.ones(6, 1), 1.0)
    assert not any(part.any() for part in one)


@DTYPES
@pytest.mark.parametrize("regularization", [0.2, 1.0])
def test_predictions_are_those_of_logistic_regression_on_unit_features(regularization, dtype, rtol):
    linear_model = pytest.importorskip("sklearn.linear_model")
    encoder, head = checks.image_networks(flatten=True)
    learner = SKD(encoder.to(dtype), head.to(dtype), classes=CLASSES, regularization=regularization)
    task = class_tasks()[0]
    arguments = task.support_x.to(dtype), task.support_y, task.query_x.to(dtype)
    support, query = (
        nn.functional.normalize(encoder(x).detach()).double().numpy() for x in (arguments[0], arguments[2])
    )
    reference = linear_model.LogisticRegression(C=1 / regularization, tol=1e-10, max_iter=10_000)
    expected = torch.from_numpy(reference.fit(support, task.support_y.numpy()).predict_log_proba(query))
    found = learner.predict(*arguments)
    assert found.dtype == dtype
    torch.testing.assert_close(found.log_softmax(1).double(), expected, rtol=1e-4, atol=1e-5)
    # They do not depend on the training classifier.
    other = SKD(encoder, head, classes=3, regularization=regularization)
    assert torch.equal(other.predict(*arguments), found)


def test_an_absent_class_has_output_minus_infinity_and_dead_features_have_equal_outputs():
    task = class_tasks()[0]
    found = make().predict(task.support_x, 2 * (task.support_y > 0), task.query_x)
    assert bool((found[:, 1] == -torch.inf).all())
    assert bool(found[:, [0, 2]].isfinite().all())
    encoder, head = checks.image_networks(flatten=True)
    nn.init.zeros_(encoder[0].weight)
    nn.init.zeros_(encoder[0].bias)
    outputs = SKD(encoder, head, classes=CLASSES).predict(task.support_x, task.support_y, task.query_x)
    torch.testing.assert_close(outputs, torch.zeros_like(outputs), rtol=0, atol=1e-9)


# -- errors ----------------------------------------------------------------------------------------------------------


def test_images_that_are_not_square_raise():
    for x in (torch.zeros(2, 1, 3, 4), torch.zeros(2, 9)):
        with pytest.raises(DataError, match=r"images of tasks must be square.*got inputs of shape"):
            rotate_images(x, [1])
    batch = class_tasks()
    wide = replace(batch, support_x=batch.support_x[..., :5], query_x=batch.query_x[..., :5])
    with pytest.raises(DataError, match=r"must be square.*\[1, 6, 5\]"):
        make().rows(wide)
