"""Readers and labels of real images, if their folder exists (see GRADHOMOG_DATA)."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from gradhomog.experiments.episodes.sampler import EpisodeStream
from gradhomog_data.domains.images import images

FOLDER = Path(os.environ.get("GRADHOMOG_DATA", Path(__file__).parents[4] / "shared" / "data"))


def real(name, size=32):
    path = FOLDER / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"{name}: there is no {path}; set GRADHOMOG_DATA to the folder of the real images")
    return images(str(path), size=size)


def accuracy(domain, split, shots):
    """Accuracy of the nearest centroid on colours averaged over an 8 x 8 grid, 5-way, 100 episodes, in percent."""
    stream = EpisodeStream([domain], split=split, ways=5, shots=shots, queries=15, tasks=1, setting="weak", seed=0)
    feature = lambda x: torch.nn.functional.adaptive_avg_pool2d(x, 8).flatten(1)  # noqa: E731
    right = []
    for index in range(100):
        task = stream.task(index)
        centroids = feature(task.support_x).reshape(5, shots, -1).mean(1)
        right.append((torch.cdist(feature(task.query_x), centroids).argmin(1) == task.query_y).float().mean().item())
    return 100 * float(np.mean(right))


@pytest.mark.parametrize(("name", "floor"), [("flowers-32", 63), ("eurosat-32", 44)])
def test_labels_belong_to_their_images(name, floor):
    """Simple features reach nearly the floor of good hand-made ones; shuffled labels would give 20."""
    assert abs(accuracy(real(name), "all", 5) - floor) < 8


def test_the_official_split_of_miniimagenet_is_kept():
    domain = real("miniimagenet-32")
    assert [len(domain.classes(split)) for split in ("train", "val", "test")] == [64, 16, 20]
    for split in ("train", "val", "test"):
        domain.check(split, ways=5, shots=5, queries=15)


def test_only_the_five_large_classes_of_chestx_are_drawn():
    domain = real("chestx-32")
    domain.check("all", ways=5, shots=5, queries=15)
    with pytest.raises(ValueError, match="found 7 classes of 16 to 80 images, of which 5 qualify"):
        domain.check("all", ways=6, shots=5, queries=15)


def test_real_images_shrink_to_the_requested_size():
    large, small = real("eurosat-32"), real("eurosat-32", 28)
    assert small.input_shape == (3, 28, 28)
    assert abs(large._images.mean() - small._images.mean()) < 1
