"""The benchmark of overheads: each form of network takes every step, and the default list is that of all on rows."""

from __future__ import annotations

import pytest
import torch

import gradhomog
from tests.benchmarks.backward_peers import BY_HAND, SUMMED
from tests.benchmarks.overhead import BENCHMARK, SHAPES, acts_on_rows
from tests.benchmarks.overhead_inputs import Setting, Transformer


@pytest.mark.parametrize("shape", [(2, 16), (2, 1, 8), (2, 3, 16, 4)], ids=str)
def test_the_table_has_references_and_each_homogenizer(shape: tuple[int, ...]) -> None:
    [comparison] = BENCHMARK(["none", "upgrad"], [shape], rounds=2, seconds=0.01)
    assert [row.label for row in comparison.table.rows] == [SUMMED, BY_HAND, "none", "upgrad"]
    assert comparison.table.failures == {}
    assert [column.title for column in comparison.columns] == [f"to {BY_HAND}"]


def test_the_default_shapes_are_networks_of_84_pixels_and_a_transformer_of_100_million_parameters() -> None:
    assert {shape[0] for shape in SHAPES} == {4, 16}
    assert [shape[1:] for shape in SHAPES[::2]] == [(3, 84, 64), (84,), (8, 1024)]
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in Transformer(8, 1024).parameters())
    assert 1e8 <= count < 1.02e8


def test_every_homogenizer_that_reads_losses_and_rows_only_is_timed() -> None:
    names = {name for name in gradhomog.available() if acts_on_rows(name)}
    assert {"upgrad", "pcgrad", "famo", "tracked"} <= names
    assert not names & {"rotograd", "isi", "ntk", "rotate"}


def test_networks_and_batches_are_the_same_in_every_call() -> None:
    setting = Setting((2, 1, 8))
    for one, other in zip(setting.network().parameters(), setting.network().parameters(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(setting.batch(3).inputs, setting.batch(3).inputs)
