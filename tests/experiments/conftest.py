"""Configuration of a comparison that takes a second: function families, a small network, a few steps."""

import pytest

from gradhomog.experiments.run_file.schema import Config, load

SMALL = [
    'domains.train=["functions:sinusoid", "functions:line", "functions:step"]',
    'domains.test=["functions:quadratic", "functions:bumps"]',
    "network.name=mlp", "network.width=8", "episodes.shots=5", "episodes.queries=5", "episodes.tasks=3",
    "train.steps=12", "train.inner_steps=2", "train.inner_lr=0.01", "train.validate_every=5", "train.log_every=2",
    "train.validation_episodes=5", "train.checkpoint_every=4", "test.episodes=6",
    'homogenizers=["none", "pcgrad", "static | static(weights=\\"random\\")"]', "seeds=2",
]  # fmt: skip


@pytest.fixture
def small() -> Config:
    return load(None, SMALL)
