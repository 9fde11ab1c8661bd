"""Hypothesis profiles; and nothing is tested unless gradhomog is installed: its plugins and fixtures are found so."""

from __future__ import annotations

import importlib.metadata
import os

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before anybody imports torch: threads of workers that share the cores wait for each other, many times over.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("ci", max_examples=16, deadline=None, derandomize=True)
settings.register_profile("explore", max_examples=400, deadline=None)  # new inputs at every run
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure() -> None:
    points = importlib.metadata.entry_points(group="gradhomog.homogenizers")
    if not any(point.dist and point.dist.name == "gradhomog" for point in points):
        pytest.exit("gradhomog is not installed, so it has no plugins: run pip install -e .", returncode=4)
