"""Published few-shot benchmarks on the user's disk: catalogue, search, file lists, checks. Nothing is downloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradhomog.experiments.data.benchmarks.catalogue import BENCHMARKS, Benchmark

if TYPE_CHECKING:
    from gradhomog.experiments.data.benchmarks.locate import find

__all__ = ["BENCHMARKS", "Benchmark", "find"]


def __getattr__(name: str) -> Any:
    if name == "find":  # imports torch, which the catalogue does not need
        from gradhomog.experiments.data.benchmarks import locate

        return locate.find
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
