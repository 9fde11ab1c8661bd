"""Fixtures: a small multi-task problem, and a cache folder instead of the user's."""

from __future__ import annotations

import pytest

from gradhomog.experiments.config.schema import Config, load

GLYPHS = [
    "problem.name=glyph_pairs", "problem.script=tifinagh", "problem.classes=3", "problem.instances=10",
    "problem.train=60", "problem.validation=30", "problem.test=40", "problem.batch=16",
    "network.size=16", "network.width=4", "train.steps=6", "train.validate_every=2", "train.checkpoint_every=3",
    "train.log_every=2", "seeds=2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "problems-cache"))


@pytest.fixture
def pairs() -> Config:
    return load(None, GLYPHS)
