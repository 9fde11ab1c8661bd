"""The benchmark of `tracked`: one loss is differentiated per step, and the table has the documented rows."""

from __future__ import annotations

import torch

from tests.benchmarks.backward_inputs import Setting
from tests.benchmarks.backward_peers import SUMMED
from tests.benchmarks.tracked import BENCHMARK, expressions, workloads

SHAPE = (3, 4, 6)


def test_a_tracked_step_writes_the_gradients_of_the_encoder_and_of_one_head():
    setting = Setting(SHAPE, torch.float64)
    step = workloads(["tracked"], setting)["tracked"]
    for number in range(4):
        step(setting.batch(number))
        assert all(parameter.grad is not None for parameter in step.network.encoder.parameters())
        assert [head.weight.grad is not None for head in step.network.heads] == [number % 3 == t for t in range(3)]


def test_the_default_table_has_the_summed_losses_and_each_pipeline():
    [comparison] = BENCHMARK([], [SHAPE], rounds=2, seconds=0.01)
    labels = [text if "tracked" in text else f"backward {text}" for text in expressions(3)]
    assert [row.label for row in comparison.table.rows] == [SUMMED, *labels]
    assert comparison.table.failures == {}
