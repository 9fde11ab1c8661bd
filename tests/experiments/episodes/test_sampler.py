import collections

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradhomog import DataError, OptionError
from gradhomog.experiments.episodes.sampler import EpisodeStream
from gradhomog_data.domains import ClassImages
from gradhomog_data.domains.functions import functions

CLASSES, IMAGES = 12, 8


def numbered(name, *, channels=1, size=4):
    """A domain in which the corner pixels of image k of class c are c and k."""
    labels = np.repeat(np.arange(CLASSES), IMAGES)
    images = np.zeros((len(labels), size, size, channels), dtype=np.uint8)
    images[:, 0, 0] = labels[:, None]
    images[:, 0, 1] = np.tile(np.arange(IMAGES), CLASSES)[:, None]
    return ClassImages(name, images, labels, [f"{name} {index}" for index in range(CLASSES)])


DOMAINS = [numbered(name) for name in "abcde"]
NUMBERS = {"split": "train", "ways": 3, "shots": 2, "queries": 3, "tasks": 4, "setting": "strong", "seed": 0}


def stream(domains=DOMAINS, **change):
    return EpisodeStream(domains, **{**NUMBERS, **change})


def same(one, two):
    fields = ("support_x", "support_y", "query_x", "query_y")
    return all(torch.equal(getattr(one, field), getattr(two, field)) for field in fields)


def corner(x, column):
    return ((x[:, 0, 0, column] + 1) * 127.5).round().long().tolist()


settings_of_stream = st.sampled_from(["weak", "strong"])
seeds = st.integers(0, 2**32 - 1)


@given(setting=settings_of_stream, seed=seeds, indices=st.lists(st.integers(0, 10**6), min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_a_batch_depends_on_its_index_alone(setting, seed, indices):
    one = stream(setting=setting, seed=seed)
    in_order = {index: one.batch(index) for index in indices}
    other = stream(setting=setting, seed=seed)
    for index in reversed(indices):
        again = other.batch(index)
        assert same(again, in_order[index])
        assert again.domains == in_order[index].domains


@given(seed=seeds, index=st.integers(0, 10**6), domains=st.integers(1, 4), tasks=st.integers(5, 11))
@settings(max_examples=50, deadline=None)
def test_strong_batches_of_few_domains_use_them_equally_often(seed, index, domains, tasks):
    names = stream(DOMAINS[:domains], seed=seed, tasks=tasks).batch(index).domains
    counts = collections.Counter(names)
    assert set(counts.values()) <= {tasks // domains, -(-tasks // domains)}
    assert len(counts) == domains


@given(seed=seeds, index=st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_the_tasks_of_a_weak_batch_come_from_one_domain(seed, index):
    assert len(set(stream(seed=seed, setting="weak").batch(index).domains)) == 1


@pytest.mark.parametrize("setting", ["weak", "strong"])
def test_over_many_batches_every_domain_fills_every_slot_equally_often(setting):
    episodes = stream(setting=setting)
    counts = collections.Counter(
        (slot, domain.name) for index in range(2000) for slot, domain in enumerate(episodes._domains_of_batch(index))
    )
    assert len(counts) == 4 * 5
    assert max(abs(count - 400) for count in counts.values()) < 90  # five standard deviations


def test_seeds_and_splits_and_indices_give_different_tasks():
    """Tasks of one domain with one set of classes differ in images or their order."""
    domain = [ClassImages("one", DOMAINS[0]._images, np.repeat(np.arange(CLASSES), IMAGES), list("abcdefghijkl"))]
    tasks = [
        stream(domain, seed=seed, split=split, queries=6).task(index)
        for seed in (0, 1, 2**32 - 1)
        for split in ("train", "all")
        for index in range(20)
    ]
    assert len({task.support_x.numpy().tobytes() + task.query_x.numpy().tobytes() for task in tasks}) == len(tasks)


def test_the_tasks_of_a_batch_are_the_consecutive_tasks_of_the_stream():
    """With one domain, batch b must contain task(4 b) ... task(4 b + 3)."""
    episodes = stream(DOMAINS[:1])
    for index in (0, 7):
        for slot, task in enumerate(episodes.batch(index)):
            assert same(task, episodes.task(4 * index + slot))


def test_evaluation_gives_every_domain_the_same_share():
    episodes = stream(split="test")
    assert [episodes.task(index).domain for index in range(10)] == list("abcde") * 2


def test_the_draws_are_the_same_on_every_machine():
    task = stream(split="all", seed=7).task(11)
    assert task.domain == "b"
    assert corner(task.support_x, 0) == [9, 9, 4, 4, 7, 7]
    assert corner(task.support_x, 1) == [7, 0, 3, 7, 7, 6]
    assert stream(seed=7).batch(3).domains == ("a", "d", "b", "e")
    assert next(stream(seed=7).batches(3)).domains == ("a", "d", "b", "e")


def test_grey_becomes_rgb_by_repetition_and_rgb_grey_by_luminance():
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 4)
    pixels = random.integers(0, 256, (16, 4, 4, 3), dtype=np.uint8)
    pixels[0] = 255
    pixels[1] = 0
    colour = ClassImages("colour", pixels, labels, list("abcd"))
    grey = ClassImages("grey", pixels[..., :1], labels, list("abcd"))
    numbers = {"split": "all", "ways": 4, "shots": 1, "queries": 3}

    mixed = stream([colour, grey], channels=3, tasks=2, **numbers)
    assert mixed.input_shape == (3, 4, 4)
    batch = mixed.batch(0)
    assert batch.query_x.shape == (2, 12, 3, 4, 4)
    repeated = batch[batch.domains.index("grey")].query_x
    assert torch.equal(repeated[:, 0], repeated[:, 1])
    assert torch.equal(repeated[:, 0], repeated[:, 2])

    mixed, plain = stream([colour], channels=1, **numbers), stream([colour], **numbers)
    assert mixed.input_shape == (1, 4, 4)
    one, all_three = mixed.task(0).query_x, plain.task(0).query_x
    expected = 0.299 * all_three[:, 0] + 0.587 * all_three[:, 1] + 0.114 * all_three[:, 2]
    torch.testing.assert_close(one[:, 0], expected, rtol=0, atol=1e-6)
    assert one.abs().max() <= 1


INCOMPATIBLE = {
    "sizes": (
        [DOMAINS[0], numbered("b", size=5)],
        {},
        r"of the same shape; a has \(1, 4, 4\) and b has \(1, 5, 5\).*`size`",
    ),
    "channels": ([DOMAINS[0], numbered("b", channels=3)], {}, r"b has \(3, 4, 4\)\. Set `channels=1` or `channels=3`"),
    "sizes of converted": ([DOMAINS[0], numbered("b", size=5)], {"channels": 3}, "must have inputs of the same shape"),
    "names": ([DOMAINS[0], DOMAINS[0]], {}, "different names; got a, a"),
    "no channels": ([functions("line")], {"channels": 3}, r"`channels=3` converts images; domain functions:line"),
    "too few classes": (DOMAINS, {"ways": 20}, "domain 'a', split 'train': 20-way tasks"),
    "too few images": (DOMAINS, {"shots": 9}, "need 3 classes of at least 12 images"),
}


@pytest.mark.parametrize(("domains", "change", "message"), INCOMPATIBLE.values(), ids=INCOMPATIBLE.keys())
def test_incompatible_domains_raise_at_construction(domains, change, message):
    with pytest.raises(DataError, match=message):
        stream(domains, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ways": 0}, "`ways` must be an integer ≥ 1; got 0"),
        ({"setting": "medium"}, '`setting` must be one of "weak", "strong"; got \'medium\''),
    ],
)
def test_numbers_out_of_range_raise(change, message):
    with pytest.raises(OptionError, match=message):
        stream(**change)


@given(seed=seeds, index=st.integers(0, 10**6), split=st.sampled_from(["train", "val", "test", "all"]))
@settings(max_examples=30, deadline=None)
def test_classes_number_those_of_the_split_over_all_domains(seed, index, split):
    """The corner pixel of an image is its class in its domain; the stream numbers the classes domain by domain."""
    episodes = stream(seed=seed, split=split)
    batch = episodes.batch(index)
    all_of_them = [(domain.name, own) for domain in DOMAINS for own in domain.classes(split)]
    assert episodes.class_count == len(all_of_them)
    assert batch.classes.shape == (4, 3)
    for task in batch:
        for x, y in ((task.support_x, task.support_y), (task.query_x, task.query_y)):
            drawn = [all_of_them[number] for number in task.classes[y].tolist()]
            assert drawn == [(task.domain, own) for own in corner(x, 0)]


def test_a_task_with_classes_that_its_domain_does_not_list_raises():
    episodes = stream(DOMAINS[:1], split="all", ways=CLASSES)
    del episodes._class_numbers["a"][2]
    with pytest.raises(DataError, match=r"`classes` of a task must be among the 11 of `classes\('all'\)`; found \[2\]"):
        episodes.task(0)
