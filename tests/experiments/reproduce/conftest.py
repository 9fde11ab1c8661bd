"""Small data in place of the nine benchmarks: random pictures whose classes differ in color."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gradhomog.experiments.reproduce.comparisons import find_domains
from gradhomog.experiments.reproduce.paper_schema import read_experiment

NAMES = tuple(read_experiment("strong")[0].benchmarks)
TINY = [
    "network.size=16", "network.width=4", "train.steps=2", "train.validate_every=1", "train.validation_episodes=2",
    "train.inner_steps=1", "train.log_every=1", "episodes.queries=1", "test.episodes=3",
    "test.queries=2",
]  # fmt: skip
"""Overrides for runs of a fraction of a second."""


@pytest.fixture(scope="session")
def nine_benchmarks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `<name>-16.npz` for each benchmark; the specialized ones have few classes."""
    folder = tmp_path_factory.mktemp("data")
    for index, name in enumerate(NAMES):
        classes = 5 if name in ("chestx", "cropdiseases", "eurosat", "isic") else 20
        random = np.random.default_rng(index)
        colors = random.integers(40, 215, (classes, 1, 1, 1, 3))
        images = np.clip(colors + random.normal(0, 20, (classes, 7, 16, 16, 3)), 0, 255).astype(np.uint8)
        np.savez(
            folder / f"{name}-16.npz",
            images=images.reshape(-1, 16, 16, 3),
            labels=np.repeat(np.arange(classes), 7),
            class_names=np.array([f"{name} {number}" for number in range(classes)]),
        )
    return folder


@pytest.fixture(scope="session")
def domains(nine_benchmarks: Path) -> dict[str, str]:
    return find_domains(NAMES, nine_benchmarks, [], 16)


@pytest.fixture(scope="module")
def without_pictures() -> Iterator[None]:
    """Neither figures of comparisons nor saliency maps, which take most of the time of tiny runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradhomog.experiments.report.page._save_figures", lambda *arguments: {})
        patch.setattr("gradhomog.experiments.training.meta_learning.write_saliency_maps", lambda *arguments: None)
        yield
