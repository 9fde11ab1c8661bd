"""Published few-shot benchmarks on the user's disk: facts, search, file lists, checks. Nothing is downloaded."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from gradhomog import BenchmarkCheck, BenchmarkSpec, hookimpl
from gradhomog_data.benchmarks.catalogue import Published, read_facts


class FolderBenchmark(Published):
    """A benchmark of images, in its published folders or in another form that the domain `images` reads."""

    # The modules of the operations import torch, which listings do not need.

    def find(self, root: Path, size: int) -> Path | None:
        from gradhomog_data.benchmarks import locate

        return locate.find(root, self, size)

    def check(self, root: Path, *, full: bool = False) -> BenchmarkCheck:
        from gradhomog_data.benchmarks import files_check

        return files_check.check(root, self, BENCHMARKS.values(), full=full)

    def count(self, path: Path) -> BenchmarkCheck:
        from gradhomog_data.benchmarks import files_check

        return files_check.count(self, path)

    def has_source(self, root: Path) -> bool:
        from gradhomog_data.benchmarks import locate

        return locate.has_source(root, self)

    def lists(self, root: Path, folder: Path) -> tuple[dict[str, Any], dict[str, bytes | None]]:
        from gradhomog_data.benchmarks import locate
        from gradhomog_data.benchmarks.listing import list_files

        return list_files(self, locate.list_source(root, self), folder)


BENCHMARKS = {name: FolderBenchmark(**facts) for name, facts in read_facts().items()}
"""The benchmarks by name, in the order of `benchmarks.toml`."""


@hookimpl
def gradhomog_benchmark(name: str) -> BenchmarkSpec:
    found = BENCHMARKS[name]
    return BenchmarkSpec(functools.partial(_get, name), f"{found.title}: {found.classes} classes", found.source)


def _get(name: str) -> FolderBenchmark:
    return BENCHMARKS[name]
