"""Baseline, meta-transfer learning and SKD, which train on all classes: formulas, phases, and fits at meta-test."""

import copy
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, conv2d, cross_entropy, kl_div

import gradhomog
from gradhomog import DataError, OptionError, TaskBatch
from gradhomog_adapters._classifiers import CosineClassifier, make_linear
from gradhomog_adapters.anil import anil
from gradhomog_adapters.baseline import Baseline
from gradhomog_adapters.baseline_pp import BaselinePP
from gradhomog_adapters.meta_transfer import MetaTransfer
from gradhomog_adapters.skd import SKD, rotate_images
from tests.adapters import checks
from tests.adapters.checks import CLASSES, class_tasks


def reference_outputs(learner, z):
    """Outputs of the training classifier, from its formula."""
    own = dict(learner.extra_modules["classifier"].named_parameters())
    if "weight" in own:
        return z @ own["weight"].T + own["bias"]
    cosines = nn.functional.cosine_similarity(z[:, None], own["direction"][None], dim=2)
    return 2 * own["length"][:, 0] * cosines


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("kind", [Baseline, BaselinePP])
def test_rows_are_the_cross_entropy_over_all_classes_and_accuracies_over_those_of_a_task(kind, engine):
    encoder, head = checks.networks()
    learner = kind(encoder, head, classes=CLASSES, engine=engine)
    batch, accuracies = checks.tasks(classes=CLASSES), []

    def loss(task):
        outputs = reference_outputs(learner, encoder(torch.cat([task.support_x, task.query_x])))
        of_task = outputs[len(task.support_y) :, task.classes].argmax(1)
        accuracies.append(float((of_task == task.query_y).double().mean()))
        return nn.functional.cross_entropy(outputs, task.classes[torch.cat([task.support_y, task.query_y])])

    checks.assert_rows_match_autograd(learner, batch, loss)
    assert learner.rows(batch).accuracies.tolist() == pytest.approx(accuracies)


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
        ("meta_transfer", {"classes": CLASSES, "pretrain_steps": 1}, None, MISSING.format("MetaTransfer")),
        ("skd", {"classes": CLASSES}, None, MISSING.format("SKD")),
    ],
)
def test_missing_and_invalid_class_indices_raise(name, options, classes, message):
    batch = replace(checks.class_tasks(count=1), classes=classes and torch.tensor([classes]))
    with pytest.raises(DataError, match=message):
        gradhomog.learner(name, *checks.image_networks(flatten=True), **options).rows(batch)


@pytest.mark.parametrize("learner", [partial(MetaTransfer, classes=CLASSES, pretrain_steps=1), SKD])
def test_regression_raises(learner):
    batch = checks.class_tasks(count=1)
    batch = replace(batch, support_y=batch.support_x[..., 0, 0], query_y=batch.query_x[..., 0, 0])
    with pytest.raises(DataError, match="supports classification only"):
        learner(*checks.image_networks(flatten=True)).rows(batch)


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
    Baseline(nn.Identity(), nn.Linear(5, 3), test_lr=0.01, test_epochs=20, test_batch=4).fit(ours, x, y, generator)
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
def test_predictions_depend_on_the_seed_and_not_on_earlier_tasks_or_the_training_classifier(kind):
    task = checks.tasks()[0]
    learners = [
        kind(*checks.networks(), test_epochs=5, seed=seed, classes=classes)
        for seed, classes in ((0, CLASSES), (0, 2), (1, CLASSES))
    ]
    first, again, same, other = (
        learner.predict(task.support_x, task.support_y, task.query_x) for learner in (learners[0], *learners)
    )
    assert torch.equal(first, again)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def make_meta_transfer(homogenizers=None, normalized=False, **options):
    return MetaTransfer(*checks.image_networks(normalized, flatten=True), homogenizers, **{"inner_steps": 3, **options})


def perturb(learner):
    """Change scales and shifts from their initial values."""
    modules = learner.extra_modules
    checks.perturb([*modules["scales"].parameters(), *modules["shifts"].parameters()], 0.3)


# -- scales and shifts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_order", [False, True])
def test_rows_are_those_of_a_loop_with_scaled_and_shifted_convolutions(first_order):
    learner = make_meta_transfer(inner_lr=0.1, first_order=first_order)
    perturb(learner)
    # The head is one linear layer, in a Sequential.
    named = {name.replace("head.0.", "head."): parameter for name, parameter in learner.named_parameters().items()}
    kernel, bias = (p.detach() for p in learner.encoder[0].parameters())

    def encode(x):
        scale, shift = named["learner.scales.encoder.0.weight"], named["learner.shifts.encoder.0.bias"]
        assert scale.shape == (2, 1, 1, 1)
        return torch.tanh(conv2d(x, kernel * scale, bias + shift)).flatten(1)

    def loss(task):
        support, query = encode(task.support_x), encode(task.query_x)
        weight, offset = named["head.weight"], named["head.bias"]
        if first_order:
            support = support.detach()
        for _ in range(3):
            value = cross_entropy(support @ weight.T + offset, task.support_y)
            steps = torch.autograd.grad(value, (weight, offset), create_graph=not first_order)
            weight, offset = weight - 0.1 * steps[0], offset - 0.1 * steps[1]
        return cross_entropy(query @ weight.T + offset, task.query_y)

    checks.assert_rows_match_autograd(learner, class_tasks(), loss)


@pytest.mark.parametrize(
    ("layer", "scale", "shift"),
    [
        (nn.Linear(4, 3), (3, 4), (3,)),
        (nn.Conv1d(4, 6, 1, groups=2), (6, 2, 1), (6,)),
        (nn.ConvTranspose2d(4, 6, 2), (4, 6, 1, 1), (6,)),
        (nn.Conv2d(4, 6, 2, bias=False), (6, 4, 1, 1), None),
    ],
)
def test_there_is_a_scale_for_each_pair_of_channels_and_a_shift_for_each_bias(layer, scale, shift):
    learner = MetaTransfer(nn.Sequential(layer), nn.Linear(3, 2))
    found = {n: tuple(p.shape) for n, p in learner.named_parameters().items() if n.startswith("learner.")}
    expected = {"learner.scales.encoder.0.weight": scale, "learner.shifts.encoder.0.bias": shift}
    assert found == {name: shape for name, shape in expected.items() if shape}


# -- pre-training ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_rows_in_pre_training_are_those_of_the_baseline(dtype, rtol):
    learner = make_meta_transfer(pretrain_steps=2, classes=CLASSES)
    reference = Baseline(*checks.image_networks(flatten=True), classes=CLASSES)
    for part in (learner, reference):
        for module in (part.encoder, part.head, part.extra_modules):
            module.to(dtype)
    reference.extra_modules["classifier"].load_state_dict(learner.extra_modules["classifier"].state_dict())
    batch = class_tasks()
    batch = replace(batch, support_x=batch.support_x.to(dtype), query_x=batch.query_x.to(dtype))
    checks.assert_rows_equal(learner.rows(batch), reference.rows(batch), rtol, rtol / 1000)


def test_each_phase_trains_its_own_parameters_under_momentum_and_weight_decay():
    learner = make_meta_transfer(normalized=True, pretrain_steps=2, classes=CLASSES)
    everything = {"encoder": learner.encoder, "head": learner.head, **learner.extra_modules}
    outer, changed = torch.optim.AdamW(learner.parameters(), lr=0.1, weight_decay=0), []
    for _ in range(4):
        before = copy.deepcopy({name: module.state_dict() for name, module in everything.items()})
        learner.step(class_tasks(), outer)
        changed.append({name for name in everything if str(before[name]) != str(everything[name].state_dict())})
    first, second = {"encoder", "classifier", "count"}, {"head", "scales", "shifts", "count"}
    assert changed == [first, first, second, second]
    assert not learner.pretraining


def test_the_head_is_adapted_at_meta_test_during_pre_training():
    learner = make_meta_transfer(pretrain_steps=2, classes=CLASSES, inner_steps=2, test_steps=4, inner_lr=0.1)
    reference = anil(*checks.image_networks(flatten=True), inner_steps=2, test_steps=4, inner_lr=0.1)
    assert learner.evaluate(class_tasks()).losses == pytest.approx(reference.evaluate(class_tasks()).losses, rel=1e-12)


# -- options and errors ----------------------------------------------------------------------------------------------


def test_layers_that_are_frozen_later_are_not_scaled():
    learner, reference = make_meta_transfer(), make_meta_transfer()
    for part in (learner, reference):
        part.encoder[0].requires_grad_(False)
    perturb(learner)
    torch.testing.assert_close(learner.rows(class_tasks()).losses, reference.rows(class_tasks()).losses, rtol=0, atol=0)


def test_an_encoder_without_layers_to_scale_raises():
    with pytest.raises(OptionError, match="scales convolutions and linear layers of the encoder"):
        MetaTransfer(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3)), nn.Linear(3, 2))


DTYPES = pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])


def make_skd(homogenizers=None, normalized=False, **options):
    return SKD(*checks.image_networks(normalized, flatten=True), homogenizers, **{"classes": CLASSES, **options})


def turned(x, quarters):
    return torch.from_numpy(np.rot90(x.numpy(), quarters, (-2, -1)).copy())


def images_and_classes(task):
    y = task.classes[torch.cat([task.support_y, task.query_y])]
    return torch.cat([task.support_x, task.query_x]), y


# -- generation 0 ----------------------------------------------------------------------------------------------------


def test_rows_of_generation_0_are_those_of_the_written_loss():
    learner = make_skd(rotation_weight=1.5)
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
    learner = make_skd(generation0_steps=0, temperature=3.0, distance_weight=0.7)
    checks.perturb(learner.parameters(), 0.2)
    teacher, classifier = learner.extra_modules["teacher"], learner.extra_modules["classifier"]

    def loss(task):
        x, _ = images_and_classes(task)
        z, twin = (classifier(learner.encoder(images)) for images in (x, turned(x, 2)))
        target = (teacher(x) / 3).softmax(1).detach()
        divergence = kl_div((z / 3).log_softmax(1), target, reduction="batchmean")
        return 9 * divergence + 0.7 * (z - twin).square().sum(1).sqrt().mean()

    checks.assert_rows_match_autograd(learner, class_tasks(), loss)


def test_the_teacher_is_the_network_after_generation_0_and_never_changes_again():
    learner = make_skd(normalized=True, generation0_steps=2)
    outer = torch.optim.SGD(learner.parameters(), lr=0.1)
    generations, student, teacher = [], [], []
    for seed in range(4):
        learner.step(class_tasks(seed=seed), outer)
        generations.append(learner.generation)
        part = learner.extra_modules["teacher"]
        student.append(str([learner.encoder.state_dict(), learner.extra_modules["classifier"].state_dict()]))
        teacher.append(str([part.encoder.state_dict(), part.classifier.state_dict()]))
    assert generations == [0, 1, 1, 1]
    assert teacher[0] != teacher[1] == teacher[2] == teacher[3] == student[1]
    assert len(set(student)) == 4


def test_homogenizers_in_the_encoder_do_not_act_on_the_teacher():
    # `isi` changes the features of the student, so its outputs differ from those of an equal teacher.
    losses = []
    for homogenizers in (None, "isi(layers=1)"):
        learner = make_skd(homogenizers, generation0_steps=0, distance_weight=0)
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


# -- logistic regression ---------------------------------------------------------------------------------------------


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
    found = make_skd().predict(task.support_x, 2 * (task.support_y > 0), task.query_x)
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
        make_skd().rows(wide)
