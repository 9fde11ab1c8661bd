"""The tests with a framework itself are collected only when their file is named: they take seconds to import."""

from pathlib import Path


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if collection_path.match("test_*.py") and collection_path.name != "test_hosts.py" else None
