"""The tests with a framework itself are collected only when their file is named: they take seconds to import."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if collection_path.match("test_*.py") and collection_path.name != "test_hosts.py" else None


@pytest.fixture(scope="module", autouse=True)
def _few_objects() -> Iterator[None]:
    """Accelerate collects garbage after each training: 0.3 s for the objects of the imported packages."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest, folder: Path) -> list[dict[Any, Any]]:
    """The results of each rank, of the module of trainings that belongs to a `test_*_on_ranks.py`."""
    from .torchrun import on_two_ranks  # torch is not imported for the collection

    return on_two_ranks(request.module.__name__.rpartition("test_")[2], folder)
