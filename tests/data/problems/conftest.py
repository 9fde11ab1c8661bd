"""Fixtures: a small multi-task problem, and one cache folder of all tests, as pictures take seconds to render."""

import importlib.util

import pytest
import torch

from gradhomog import MultiTaskData, ProblemRun
from gradhomog.experiments.run_file.schema import Config, load
from gradhomog.experiments.runs import Run
from gradhomog.experiments.training.trainer import make_trainable

GLYPHS = [
    "problem.name=glyph_pairs", "problem.script=tifinagh", "problem.classes=3", "problem.instances=10",
    "problem.train=60", "problem.validation=30", "problem.test=40", "problem.batch=16",
    "network.size=16", "network.width=4", "train.steps=6", "train.validate_every=2", "train.checkpoint_every=3",
    "train.log_every=2", "seeds=2",
]  # fmt: skip

needs_recbole = pytest.mark.skipif(
    importlib.util.find_spec("recbole") is None, reason="needs its files: pip install --no-deps recbole; .ci/run does"
)


def problem_run(size: int = 28, homogenizers: str = "none") -> ProblemRun:
    """The settings of a run, by default of the plain learner."""
    return ProblemRun("tested", homogenizers, "raise", 0, 1, torch.device("cpu"), 16, size)


def data_of(config: Config) -> MultiTaskData:
    """The data that the runs of a configuration train on."""
    return make_trainable(config, Run(config.learners[0], "none", 0)).data


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "problems-cache"))


@pytest.fixture
def pairs() -> Config:
    return load(None, GLYPHS)
