"""Adversarial task augmentation: ascent by hand, kernels, and the cases equal to RelationNet."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from gradhomog import Task, TaskBatch
from gradhomog_adapters.relationnet import RelationNet
from gradhomog_adapters.relationnet_ata import SIZES, RandomConvolution, RelationNetATA
from tests.adapters import checks


def make(kind=RelationNetATA, **options):
    return checks.relation_learner(kind, maps=True, **options)


def images(**options):
    return checks.tasks(shape=(1, 6, 6), **options)


# -- ascent ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("norm", "steps"), [(False, 0), (False, 3), (True, 1)])
def test_the_ascent_is_that_written_by_hand(norm, steps):
    learner = make(norm=norm, ascent_steps=steps, ascent_lr=3.0, probability=0.0)
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
    learner, batch = make(probability=1.0, ascent_lr=2.0), images()
    before = copy.deepcopy(batch)
    augmented = learner.augment(batch)
    checks.assert_rows_equal(learner.rows(batch), make(RelationNet).rows(augmented), rtol=0, atol=0)
    assert torch.equal(batch.support_x, before.support_x)
    assert torch.equal(batch.query_x, before.query_x)
    assert not augmented.support_x.requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_without_steps_and_convolution_it_is_relationnet_bit_for_bit(dtype):
    batch = images()
    batch = replace(batch, support_x=batch.support_x.to(dtype), query_x=batch.query_x.to(dtype))
    found = []
    for learner in (make(ascent_steps=0, probability=0.0), make(RelationNet)):
        for module in (learner.encoder, learner.head, learner.extra_modules):
            module.to(dtype)
        found.append(learner.rows(batch))
        assert found[-1].jacobian["encoder.0.weight"].dtype == dtype
    checks.assert_rows_equal(*found, rtol=0, atol=0)


def test_homogenizers_act_on_the_rows_and_not_on_the_ascent():
    batch = images()
    plain, dropping = make(probability=0.0), make(probability=0.0, homogenizers="isi(layers=1)")
    assert torch.equal(plain.augment(batch).query_x, dropping.augment(batch).query_x)
    assert not torch.allclose(plain.rows(batch).losses, dropping.rows(batch).losses)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_meta_test_is_that_of_relationnet(probability):
    batch = images()
    assert make(probability=probability).evaluate(batch) == make(RelationNet).evaluate(batch)


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
        learner = make(ascent_steps=0, probability=1.0, seed=seed)
        for _ in range(steps):
            learner.on_step_end()
        return learner.augment(replace(batch, domains=domains)).support_x

    first = augmented()
    assert torch.equal(first, augmented())
    for other in (augmented(seed=1), augmented(steps=1), augmented(domains=("b", "b"))):
        assert not torch.equal(first[0], other[0])
    single = TaskBatch.stack([replace(batch[0], domain="a")] * 2)
    twice = make(ascent_steps=0, probability=1.0).augment(single).support_x
    assert not torch.equal(*twice)
