import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradhomog import DataError
from gradhomog_data.domains import ClassImages
from gradhomog_data.domains.class_images import split_classes

PINNED_DIVISION = "aaaerrrreerr"  # second letters of train, val, test


def numbered(counts, *, channels=1, **options):
    """A domain in which every pixel of image k has the value k, so that tests can identify the images of a task."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    images = np.broadcast_to(np.arange(len(labels), dtype=np.uint8)[:, None, None, None], (len(labels), 4, 4, channels))
    names = [f"class {index:02}" for index in range(len(counts))]
    return ClassImages("numbered", images.copy(), labels, names, **options), labels


def which(x):
    return ((x[:, 0, 0, 0] + 1) * 127.5).round().long().tolist()


@given(ways=st.integers(1, 6), shots=st.integers(1, 4), queries=st.integers(1, 6), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_a_task_has_the_requested_classes_and_no_image_twice(ways, shots, queries, seed):
    domain, labels = numbered([10] * 6)
    task = domain.sample("all", np.random.default_rng(seed), ways=ways, shots=shots, queries=queries)
    assert task.support_y.bincount().tolist() == [shots] * ways
    assert task.query_y.bincount().tolist() == [queries] * ways
    support, query = which(task.support_x), which(task.query_x)
    assert len(set(support + query)) == ways * (shots + queries)
    true = {}
    for image, label in zip(support + query, task.support_y.tolist() + task.query_y.tolist(), strict=True):
        assert true.setdefault(label, labels[image]) == labels[image]
    assert len(set(true.values())) == ways


def test_pixels_are_in_minus_one_to_one_exactly_and_channels_are_first():
    images = np.zeros((2, 2, 2, 3), dtype=np.uint8)
    images[:, 0, 1] = (0, 255, 51)
    task = ClassImages("pixel", images, np.zeros(2, dtype=np.int64), ["only"]).sample(
        "train", np.random.default_rng(0), ways=1, shots=1, queries=1
    )
    assert task.support_x.dtype == torch.float32
    assert task.support_x.shape == (1, 3, 2, 2)
    assert task.support_x[0, :, 0, 1].tolist() == [-1.0, 1.0, np.float32(51 / 127.5) - 1]
    assert task.support_y.dtype == torch.int64
    assert task.domain == "pixel"


@given(names=st.lists(st.text(min_size=1, max_size=8), unique=True, min_size=1, max_size=60), data=st.data())
@settings(max_examples=50, deadline=None)
def test_the_division_of_classes_depends_on_names_alone(names, data):
    split = dict(zip(names, split_classes(names), strict=True))
    shuffled = data.draw(st.permutations(names))
    assert dict(zip(shuffled, split_classes(shuffled), strict=True)) == split
    counts = [list(split.values()).count(part) for part in ("train", "val", "test")]
    assert counts[1] == counts[2] == len(names) // 4


def test_the_division_of_classes_is_the_same_on_every_machine():
    assert "".join(part[1] for part in split_classes([f"class {index}" for index in range(12)])) == PINNED_DIVISION


def test_splits_share_no_class_and_all_is_their_union():
    domain, _ = numbered([3] * 22)
    parts = [set(domain.classes(split)) for split in ("train", "val", "test")]
    assert all(not one & other for one, other in itertools.combinations(parts, 2))
    assert set().union(*parts) == set(domain.classes("all")) == set(range(22))
    assert [len(part) for part in parts] == [12, 5, 5]


def test_an_official_split_is_kept():
    domain, labels = numbered([4] * 3, class_split=["test", "train", "val"])
    assert [domain.classes(split) for split in ("train", "val", "test")] == [[1], [2], [0]]
    task = domain.sample("test", np.random.default_rng(0), ways=1, shots=1, queries=3)
    assert set(labels[which(task.query_x)]) == {0}


def test_classes_with_too_few_images_are_not_drawn():
    domain, labels = numbered([6, 2, 6, 3])
    for seed in range(20):
        task = domain.sample("all", np.random.default_rng(seed), ways=2, shots=1, queries=3)
        assert set(labels[which(task.support_x)]) == {0, 2}


def test_a_split_with_too_few_classes_raises_with_domain_split_and_numbers():
    domain, _ = numbered([6, 2, 6, 3])
    with pytest.raises(
        DataError,
        match=r"'numbered', split 'all': 3-way tasks of 2 shots and 3 queries need 3 classes of "
        r"at least 5 images; found 4 classes of 2 to 6 images, of which 2 qualify. Use fewer shots",
    ):
        domain.check("all", ways=3, shots=2, queries=3)
    with pytest.raises(DataError, match=r"found 1 classes of .* Use fewer ways, or use the split 'all'"):
        domain.check("test", ways=5, shots=1, queries=1)
    with pytest.raises(DataError, match=r"found 0 classes, of which 0 qualify"):
        numbered([4] * 3)[0].sample("val", np.random.default_rng(0), ways=2, shots=1, queries=1)
    with pytest.raises(DataError, match=r"`split` must be one of train, val, test, all; got 'training'"):
        domain.check("training", ways=1, shots=1, queries=1)


GOOD = {
    "images": np.zeros((4, 2, 2, 3), dtype=np.uint8),
    "labels": np.array([0, 0, 1, 1]),
    "class_names": ["a", "b"],
    "class_split": None,
}
BAD = {
    "float images": ({"images": np.zeros((4, 2, 2, 3), dtype=np.float32)}, r"`images` must be uint8.*got float32\."),
    "not square": ({"images": np.zeros((4, 2, 3, 3), dtype=np.uint8)}, r"\[n, size, size, channels\].*\(4, 2, 3, 3\)"),
    "no images": ({"images": np.zeros((0, 2, 2, 3), dtype=np.uint8)}, r"all at least 1; got \(0, 2, 2, 3\)"),
    "nan labels": ({"labels": np.array([0, 0, 1, np.nan])}, r"`labels` must be integers.*float64 \(4,\)"),
    "one-hot labels": ({"labels": np.eye(4, dtype=np.int64)}, r"`labels` must be integers \[n\]; got int64 \(4, 4\)"),
    "short labels": ({"labels": np.array([0, 1])}, r"one entry per image; got 2 for 4 images"),
    "label too high": ({"labels": np.array([0, 0, 1, 2])}, r"`labels` must be in 0\.\.1.*got 0\.\.2"),
    "label negative": ({"labels": np.array([0, 0, 1, -1])}, r"`labels` must be in 0\.\.1.*got -1\.\.1"),
    "empty class": ({"class_names": ["a", "b", "c"]}, r"class 'c' has none \(1 of 3 classes are empty\)"),
    "names twice": (
        {"class_names": ["a", "a"]},
        r"`class_names` must differ from each other; 'a' occurs more than once",
    ),
    "short split": ({"class_split": ["train"]}, r"`class_split` must have one entry per class; got 1 for 2"),
    "unknown split": ({"class_split": ["train", "base"]}, r"`class_split` must hold train, val or test; got 'base'"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arrays_raise_with_their_source_and_the_reason(change, message):
    with pytest.raises(DataError, match=r"birds\.npz: .*" + message):
        ClassImages("birds", **{**GOOD, **change}, source="birds.npz")
