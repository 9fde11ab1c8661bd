"""The benchmark of ranks: its processes take the same step, and the table has the documented rows."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from tests.benchmarks import ranks
from tests.benchmarks.backward_inputs import Setting
from tests.benchmarks.command import main

LABELS = [ranks.PLAIN, ranks.ALONE, "none, batch", "none, local"]


def test_the_forward_pass_of_the_wrapped_network_returns_the_mean_of_its_losses():
    setting = Setting((3, 4, 6), torch.float64)
    network, batch = setting.network(), setting.batch(0)
    features = network.encoder(batch.inputs)
    losses = [nn.functional.mse_loss(head(features), y) for head, y in zip(network.heads, batch.targets, strict=True)]
    torch.testing.assert_close(ranks.WithLosses(network)(batch), sum(losses) / 3)


@pytest.mark.slow
def test_two_processes_take_every_step(capsys):
    given = ["--homogenizer", "none", "--shape", "3x4x6", "--rounds", "3", "--seconds", "0.01", "--json"]
    assert main(ranks.BENCHMARK, "description", given) == 0
    [table] = json.loads(capsys.readouterr().out)["tables"]
    assert [row["label"] for row in table["rows"]] == LABELS
    assert table["failures"] == {}
    assert all(row["seconds"]["median"] > 0 for row in table["rows"])


def test_an_invalid_expression_is_rejected_before_processes_start(capsys):
    assert main(ranks.BENCHMARK, "description", ["--homogenizer", "pcgard", "--shape", "3x4x6"]) == 2
    assert "Did you mean 'pcgrad'?" in capsys.readouterr().err
