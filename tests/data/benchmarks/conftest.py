"""Each benchmark in its published layout, written once."""

import shutil

import pytest

from tests.data.benchmarks.trees import TREES


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """Function that returns a data root with one benchmark; tests must not change it."""
    roots = {}

    def root(name):
        if name not in roots:
            roots[name] = tmp_path_factory.mktemp(name)
            TREES[name](roots[name])
        return roots[name]

    return root


@pytest.fixture
def changeable(published, tmp_path):
    """Function that returns a copy of such a data root."""

    def root(name):
        return shutil.copytree(published(name), tmp_path / "root")

    return root
