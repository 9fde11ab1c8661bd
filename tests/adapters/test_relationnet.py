"""RelationNet and its variants: rows against reference pairs, ascents and relevance by hand, published sizes."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from gradhomog import DataError, Task, TaskBatch
from gradhomog.experiments.run_file import content
from gradhomog_adapters.relationnet import RelationNet, make_feature_map_module
from gradhomog_adapters.relationnet_ata import SIZES, RandomConvolution, RelationNetATA
from gradhomog_adapters.relationnet_lrp import RelationNetLRP, class_scores, relevance_of_inputs
from tests.adapters import checks
from tests.adapters.checks import MAPS, relation_learner


@pytest.mark.parametrize("objective", ["mse", "softmax"])
@pytest.mark.parametrize("maps", [False, True])
def test_rows_are_those_of_the_reference_pairs(objective, maps):
    encoder, head = checks.image_networks() if maps else checks.networks()
    learner = RelationNet(encoder, head, objective=objective, **(MAPS if maps else {}))
    batch = checks.tasks(shape=(1, 6, 6) if maps else (3,))
    relation = learner.extra_modules["relation"]

    def loss(task):
        scores = relation(checks.reference_pairs(encoder, task)).reshape(-1, checks.WAYS)
        if objective == "softmax":
            return nn.functional.cross_entropy(scores, task.query_y)
        return nn.functional.mse_loss(torch.sigmoid(scores), nn.functional.one_hot(task.query_y, checks.WAYS).double())

    checks.assert_rows_match_autograd(learner, batch, loss)


@pytest.mark.parametrize(("size", "padding", "numbers"), [(5, 1, 64), (7, 1, 64), (19, 0, 576), (54, 0, 9216)])
def test_the_module_for_maps_has_the_published_sizes(size, padding, numbers):
    # Chen et al. 2019: after two blocks s ↦ (s − 2 + 2·padding) / 2 rounded down; 64 maps.
    module = make_feature_map_module((64, size, size), 8)
    kinds = [type(part).__name__ for part in module]
    block = ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"]
    assert kinds == [*block, *block, "Flatten", "Linear", "ReLU", "Linear"]
    assert (module[0].in_channels, module[0].out_channels, module[0].padding) == (128, 64, (padding, padding))
    assert (module[9].in_features, module[9].out_features, module[11].out_features) == (numbers, 8, 1)
    assert module(torch.rand(2, 128, size, size)).shape == (2, 1)


def test_maps_of_size_one_are_not_pooled():
    assert make_feature_map_module((4, 1, 1), 8)(torch.rand(3, 8, 1, 1)).shape == (3, 1)


@pytest.mark.parametrize("name", ["conv4", "resnet10"])
def test_the_maps_of_the_benchmark_networks_are_supported(name):
    encoder, head = content.build_network(name, (1, 28, 28), checks.WAYS, 4, flatten=False)
    learner = RelationNet(encoder, head, maps=True, input_shape=[1, 28, 28])
    before = {key: value.clone() for key, value in encoder.named_buffers()}
    batch = checks.tasks(2, shape=(1, 28, 28))
    batch = [Task(t.support_x.float(), t.support_y, t.query_x.float(), t.query_y) for t in batch]
    rows = learner.rows(batch)
    assert all(block.isfinite().all() for block in rows.jacobian.values())
    assert all(torch.equal(value, before[key]) for key, value in encoder.named_buffers())


def test_features_of_a_different_shape_raise():
    encoder, _ = checks.image_networks()
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, checks.WAYS)).double()
    learner = RelationNet(encoder, head, **MAPS)
    with pytest.raises(DataError, match=r"features of shape \[2, 5, 5\]; the encoder returned \[2, 7, 7\]"):
        learner.rows(checks.tasks(shape=(1, 8, 8)))


def test_its_loss_can_be_replaced():
    batch = checks.tasks()
    learner = RelationNet(*checks.networks(), loss=lambda outputs, y: outputs.sum())
    torch.testing.assert_close(learner.rows(batch).losses[0], learner.rows([batch[0]]).losses[0])
    assert learner.rows(batch).losses.min() > 1  # a sum of 27 relations, not a mean of squares


def make_ata(kind=RelationNetATA, **options):
    return checks.relation_learner(kind, maps=True, **options)


def images(**options):
    return checks.tasks(shape=(1, 6, 6), **options)


# -- ascent ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("norm", "steps"), [(False, 0), (False, 3), (True, 1)])
def test_the_ascent_is_that_written_by_hand(norm, steps):
    learner = make_ata(norm=norm, ascent_steps=steps, ascent_lr=3.0, probability=0.0)
    batch = images()
    found = learner.augment(batch)
    relation = learner.extra_modules["relation"]
    for slot, task in enumerate(batch):
        support_x, query_x = task.support_x, task.query_x
        for _ in range(steps):
            support_x, query_x = (x.clone().requires_grad_() for x in (support_x, query_x))
            pairs = checks.reference_pairs(learner.encoder, replace(task, support_x=support_x, query_x=query_x))
            relations = relation(pairs).reshape(-1, checks.WAYS).sigmoid()
            loss = nn.functional.mse_loss(relations, nn.functional.one_hot(task.query_y, checks.WAYS).double())
            by_support, by_query = torch.autograd.grad(loss, [support_x, query_x])
            assert float(by_support.abs().max()) > 0
            support_x, query_x = (support_x + 3.0 * by_support).detach(), (query_x + 3.0 * by_query).detach()
        torch.testing.assert_close(found.support_x[slot], support_x)
        torch.testing.assert_close(found.query_x[slot], query_x)


def test_rows_are_those_of_relationnet_on_the_augmented_tasks():
    learner, batch = make_ata(probability=1.0, ascent_lr=2.0), images()
    before = copy.deepcopy(batch)
    augmented = learner.augment(batch)
    checks.assert_rows_equal(learner.rows(batch), make_ata(RelationNet).rows(augmented), rtol=0, atol=0)
    assert torch.equal(batch.support_x, before.support_x)
    assert torch.equal(batch.query_x, before.query_x)
    assert not augmented.support_x.requires_grad


def test_homogenizers_act_on_the_rows_and_not_on_the_ascent():
    batch = images()
    plain, dropping = make_ata(probability=0.0), make_ata(probability=0.0, homogenizers="isi(layers=1)")
    assert torch.equal(plain.augment(batch).query_x, dropping.augment(batch).query_x)
    assert not torch.allclose(plain.rows(batch).losses, dropping.rows(batch).losses)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_meta_test_is_that_of_relationnet(probability):
    batch = images()
    assert make_ata(probability=probability).evaluate(batch) == make_ata(RelationNet).evaluate(batch)


# -- kernels ---------------------------------------------------------------------------------------------------------


def impulse(channels=2, size=31):
    """A task with one image per channel: its only pixel that is not zero is in the middle of this channel."""
    x = torch.zeros(channels, channels, size, size, dtype=torch.float64)
    for channel in range(channels):
        x[channel, channel, size // 2, size // 2] = 1
    return Task(x, torch.zeros(channels, dtype=torch.int64), x, torch.zeros(channels, dtype=torch.int64), "domain")


def kernels(count, probability=1.0, seed=0):
    """Responses to impulses, `[channels, channels, k, k]` cropped to the kernel, for several domains."""
    convolution, task, found = RandomConvolution(probability, seed), impulse(), []
    for number in range(count):
        response = convolution.convolve(replace(task, domain=str(number)), 0).support_x
        rows = response.abs().sum((0, 1, 3)).nonzero().flatten()
        found.append(response[..., rows[0] : rows[-1] + 1, rows[0] : rows[-1] + 1])
    return found


def test_kernels_have_the_published_sizes_and_xavier_variance():
    found = kernels(300)
    assert {kernel.shape[-1] for kernel in found} == set(SIZES)
    # Entries times k √C are standard normal.
    entries = torch.cat([kernel.flatten() * kernel.shape[-1] * math.sqrt(2) for kernel in found])
    assert abs(float(entries.mean())) < 5 / math.sqrt(len(entries))
    assert abs(float(entries.std()) - 1) < 5 / math.sqrt(2 * len(entries))


def test_support_and_query_images_are_convolved_with_one_kernel():
    convolved = RandomConvolution(1.0, 0).convolve(impulse(), 0)
    assert torch.equal(convolved.support_x, convolved.query_x)
    assert not torch.equal(convolved.support_x, impulse().support_x)


def test_the_share_of_convolved_tasks_is_the_probability():
    unchanged = sum(
        kernel.shape[-1] == 1 and torch.equal(kernel[..., 0, 0], torch.eye(2).double()) for kernel in kernels(400, 0.7)
    )
    assert abs(unchanged / 400 - 0.3) < 5 * math.sqrt(0.21 / 400)


def test_inputs_that_are_not_images_are_not_convolved():
    task = checks.tasks(1)[0]
    assert RandomConvolution(1.0, 0).convolve(task, 0) is task


def test_kernels_are_a_function_of_seed_step_domain_and_place():
    batch = images(count=2)

    def augmented(seed=0, steps=0, domains=("a", "a")):
        learner = make_ata(ascent_steps=0, probability=1.0, seed=seed)
        for _ in range(steps):
            learner.on_step_end()
        return learner.augment(replace(batch, domains=domains)).support_x

    first = augmented()
    assert torch.equal(first, augmented())
    for other in (augmented(seed=1), augmented(steps=1), augmented(domains=("b", "b"))):
        assert not torch.equal(first[0], other[0])
    single = TaskBatch.stack([replace(batch[0], domain="a")] * 2)
    twice = make_ata(ascent_steps=0, probability=1.0).augment(single).support_x
    assert not torch.equal(*twice)


def lrp_tasks(maps=False, **options):
    return checks.tasks(shape=(1, 6, 6) if maps else (3,), **options)


def vector_relevance(relation, pair, value):
    """The relevance of one pair for a module of two linear layers with a ReLU, by the textbook's loops."""
    first, last = relation[0], relation[2]
    hidden = torch.relu(first(pair))

    def propagate(inputs, weight, outputs):
        found = torch.zeros_like(inputs)
        for j, row in enumerate(weight):
            z = sum(row[i] * inputs[i] for i in range(len(inputs)))
            for i in range(len(inputs)):
                found[i] += row[i] * inputs[i] / (z + (0.01 if z >= 0 else -0.01)) * outputs[j]
        return found

    with torch.no_grad():
        return propagate(pair, first.weight, propagate(hidden, last.weight, value))


def test_rows_are_those_of_weighted_pairs_with_constant_weights():
    learner = relation_learner(RelationNetLRP)
    relation, encoder = learner.extra_modules["relation"], learner.encoder

    def loss(task):
        pairs = checks.reference_pairs(encoder, task)
        scores = relation(pairs).reshape(-1, checks.WAYS)
        p = scores.detach().softmax(1).flatten()
        weights = []
        for pair, share in zip(pairs.detach(), p, strict=True):
            value = math.log(2 * (float(share) + 0.01) / (1.01 - float(share)))
            relevance = vector_relevance(relation, pair, torch.tensor([value], dtype=torch.float64))
            weights.append(1 + relevance / relevance.abs().max())
        weighted = relation(pairs * torch.stack(weights)).reshape(-1, checks.WAYS)
        labels = nn.functional.one_hot(task.query_y, checks.WAYS).double()
        return sum(nn.functional.mse_loss(torch.sigmoid(found), labels) for found in (scores, weighted))

    checks.assert_rows_match_autograd(learner, lrp_tasks(), loss)


@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("objective", ["mse", "softmax"])
def test_rows_are_those_of_the_sum_of_both_losses_for_the_same_weights(maps, objective):
    # The weights are taken from the learner: this tests batch normalization, masks and both objectives.
    learner = relation_learner(RelationNetLRP, maps, objective=objective, guidance=0.3, engine="loop")
    plain = relation_learner(RelationNet, maps, objective=objective)
    weights = []
    compute = learner.weights
    learner.weights = lambda *arguments: weights.append(compute(*arguments)) or weights[-1]
    batch = lrp_tasks(maps)
    learner.rows(batch)
    relation, left = learner.extra_modules["relation"], iter(weights)

    def loss(task):
        pairs = checks.reference_pairs(learner.encoder, task)
        found = [relation(x).reshape(-1, checks.WAYS) for x in (pairs, pairs * next(left).reshape(pairs.shape))]
        losses = [learner.loss(x if objective == "softmax" else x.sigmoid(), task.query_y) for x in found]
        return losses[0] + 0.3 * losses[1]

    learner.weights = compute
    assert len(weights) == len(batch)
    assert all(float(w.min()) >= 0 and float(w.max()) <= 2 and float(w.std()) > 0.1 for w in weights)
    checks.assert_rows_match_autograd(learner, batch, loss)
    task = batch[0]
    arguments = task.support_x, task.support_y, task.query_x
    assert torch.equal(learner.predict(*arguments), plain.predict(*arguments))


@pytest.mark.parametrize(("shots", "expected"), [(1, 0.5), (2, 1.0), (5, 1.0)])
def test_the_default_guidance_depends_on_the_shots(shots, expected):
    batch = lrp_tasks(shots=shots)
    default, explicit = relation_learner(RelationNetLRP), relation_learner(RelationNetLRP, guidance=expected)
    checks.assert_rows_equal(default.rows(batch), explicit.rows(batch), rtol=0, atol=0)


@pytest.mark.parametrize("maps", [False, True])
def test_without_guidance_it_is_relationnet(maps):
    found, expected = relation_learner(RelationNetLRP, maps, guidance=0.0), relation_learner(RelationNet, maps)
    checks.assert_rows_equal(found.rows(lrp_tasks(maps)), expected.rows(lrp_tasks(maps)), rtol=0, atol=0)


def test_absent_classes_have_no_share():
    present = torch.tensor([True, False, True])
    found = class_scores(torch.zeros(1, 3, dtype=torch.float64), present)
    torch.testing.assert_close(found[0, [0, 2]], torch.zeros(2, dtype=torch.float64))  # p = 1/2, β = 1
    assert float(found[0, 1]) == pytest.approx(math.log(0.01 / 1.01))


# -- layer-wise relevance propagation: a loop over contributions, and layers that only pass relevance on ---------------

DTYPES = [(torch.float64, 1e-12), (torch.float32, 1e-5)]


def layers(*modules):
    return [(module, dict(module.named_parameters())) for module in modules]


@pytest.mark.parametrize(("dtype", "rounding"), DTYPES)
def test_a_convolution_shares_relevance_by_positive_contributions(dtype, rounding):
    # The oracle is a loop over outputs and inputs of the convolution written as a matrix.
    torch.manual_seed(0)
    module = nn.Conv2d(2, 3, 3, padding=1, stride=2).to(dtype)
    x, relevance = torch.randn(1, 2, 4, 4).to(dtype), torch.randn(1, 3, 2, 2).to(dtype)
    basis = torch.eye(32, dtype=dtype).reshape(32, 2, 4, 4)
    matrix = (module(basis) - module(torch.zeros_like(basis))).flatten(1).detach().T  # [outputs, inputs]
    expected = torch.zeros(32, dtype=dtype)
    for row, value in zip(matrix, relevance.flatten(), strict=True):
        contributions = (row * x.flatten()).clamp(min=0)
        expected += contributions / contributions.sum() * value
    found = relevance_of_inputs(layers(module), x, relevance)
    torch.testing.assert_close(found.flatten(), expected, rtol=10 * rounding, atol=10 * rounding)
    torch.testing.assert_close(found.sum(), relevance.sum(), rtol=10 * rounding, atol=10 * rounding)


def test_an_output_without_positive_contributions_loses_its_relevance():
    module = nn.Conv2d(1, 1, 1).double()
    module.weight.data.fill_(-1)
    ones = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    assert torch.equal(relevance_of_inputs(layers(module), ones, ones), torch.zeros_like(ones))


def test_pooling_gives_all_relevance_to_the_maximum_and_other_layers_do_not_change_it():
    x = torch.tensor([[[[1.0, 5.0], [2.0, 3.0]]]], dtype=torch.float64)
    relevance = torch.tensor([[7.0]], dtype=torch.float64)
    found = relevance_of_inputs(layers(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()), x, relevance)
    assert torch.equal(found, torch.tensor([[[[0.0, 7.0], [0.0, 0.0]]]], dtype=torch.float64))
