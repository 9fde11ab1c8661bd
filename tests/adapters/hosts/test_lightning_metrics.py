"""The metrics that `HomogenizedLoss` logs: names, values, and the steps to which they belong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .lightning_modules import L, TwoTasks, batches, fit

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice, and deprecations within Lightning


def test_losses_weights_and_the_smallest_cosine_are_logged() -> None:
    module = TwoTasks("static(weights=[1, 3])", inspect=True)
    losses = module.losses(next(iter(batches())))
    rows = [torch.autograd.grad(loss, [*module.encoder.parameters()], retain_graph=True) for loss in losses.values()]
    depth, normals = (torch.cat([part.flatten() for part in row]) for row in rows)
    found = fit(module, epochs=1, limit_train_batches=1).callback_metrics
    expected = {
        "loss/depth": losses["depth"].detach(),
        "loss/normals": losses["normals"].detach(),
        "weight/depth": 0.5,
        "weight/normals": 1.5,
        "cosine/min": torch.cosine_similarity(depth, normals, dim=0),
    }
    assert {name: float(value) for name, value in found.items()} == pytest.approx(
        {name: float(value) for name, value in expected.items()}, rel=1e-5
    )


def test_the_names_and_kinds_of_metrics_are_options() -> None:
    module = TwoTasks("upgrad", log=["norm", "cosine"], prefix="train/")
    found = fit(module, epochs=1).callback_metrics
    assert {*found} == {"train/norm/depth", "train/norm/normals", "train/cosine/depth-normals"}


def test_cosines_are_not_computed_for_logs_only() -> None:
    assert {*fit(TwoTasks("uw"), epochs=1).callback_metrics} == {
        "loss/depth", "loss/normals", "weight/depth", "weight/normals",
    }  # fmt: skip


def test_metrics_reach_the_logger_at_the_step_of_their_batch(tmp_path: Path) -> None:
    module = TwoTasks("uw", log=["loss"])
    logger = L.loggers.CSVLogger(tmp_path)
    first = float(module.losses(next(iter(batches())))["depth"])
    fit(module, epochs=1, logger=logger, log_every_n_steps=1)
    rows = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + 6
    column = rows[0].split(",").index("loss/depth")
    assert float(rows[1].split(",")[column]) == pytest.approx(first, rel=1e-5)
