"""Published few-shot benchmarks on the user's disk: facts, search, file lists, checks. Nothing is downloaded."""

import functools
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from gradhomog import BenchmarkCheck, BenchmarkSpec, hookimpl
from gradhomog_data.benchmarks.catalogue import Published


class FolderBenchmark(Published):
    """A benchmark of images, in its published folders or in another form that the domain `images` reads."""

    # The modules of the operations import torch, which listings do not need.

    def find(self, root: Path, size: int) -> Path | None:
        from gradhomog_data.benchmarks import folders

        return folders.find(root, self, size)

    def check(self, root: Path, *, full: bool = False) -> BenchmarkCheck:
        from gradhomog_data.benchmarks import files_check

        return files_check.check(root, self, BENCHMARKS.values(), full=full)

    def count(self, path: Path) -> BenchmarkCheck:
        from gradhomog_data.benchmarks import files_check

        return files_check.count(self, path)

    def has_source(self, root: Path) -> bool:
        from gradhomog_data.benchmarks import folders

        return folders.find_source(root, self) is not None

    def lists(self, root: Path, folder: Path) -> tuple[dict[str, Any], dict[str, bytes | None]]:
        from gradhomog_data.benchmarks import folders

        return folders.list_files(self, folders.list_source(root, self), folder)


def _read(name: str, facts: dict[str, Any]) -> FolderBenchmark:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}
    return FolderBenchmark(name=name, **fields)


BENCHMARKS = {
    name: _read(name, facts)
    for name, facts in tomllib.loads((files(__name__) / "benchmarks.toml").read_text(encoding="utf-8")).items()
}
"""The benchmarks by name, in the order of `benchmarks.toml`."""


@hookimpl
def gradhomog_benchmark(name: str) -> BenchmarkSpec:
    found = BENCHMARKS[name]
    return BenchmarkSpec(
        functools.partial(BENCHMARKS.get, name), f"{found.title}: {found.classes} classes", found.source
    )
