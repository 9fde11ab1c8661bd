"""`HomogenizedLoss` with Lightning's DDP: "none" is DDP, other pipelines train as one process with the whole batch."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gradhomog import OptionError

from .lightning_modules import L, TwoTasks, batches, fit
from .lightning_on_ranks import CASES, Adam, fabric_loop
from .measures import parameters

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice

EVEN = slice(0, None, 2)
"""The examples of rank 0 in the batch of both ranks."""


def in_one_process(module: Any, **options: Any) -> Tensor:
    """Train with batches of eight, which are those of two ranks together."""
    options = {name: value for name, value in options.items() if name != "strategy"}
    fit(module, data=batches(3, 8), **options)
    return parameters(module)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", CASES)
def test_without_homogenizers_training_is_that_of_ddp(name: str, ranks: Any) -> None:
    close(ranks[0][name, "none"], ranks[0][name, None])


@pytest.mark.parametrize("name", CASES)
def test_training_is_that_of_one_process_with_the_whole_batch(name: str, ranks: Any) -> None:
    kind, optimizer, options = CASES[name]
    for rank in ranks:
        close(rank[name, "upgrad"], in_one_process(kind("upgrad", optimizer), **options))
    assert not torch.allclose(ranks[0][name, "upgrad"], ranks[0][name, "none"], rtol=1e-3)


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_all_ranks_have_the_same_parameters(precision: str, ranks: Any) -> None:
    names = ["bf16"] if precision == "bf16" else [(name, "upgrad") for name in CASES]
    for name in names:
        assert torch.equal(ranks[0][name], ranks[1][name])


def test_a_hook_that_sends_nothing_does_not_change_the_training(ranks: Any) -> None:
    for rank in ranks:
        close(rank["noop hook"], ranks[0]["sgd", "upgrad"])


def test_metrics_are_those_of_the_whole_batch(ranks: Any) -> None:
    module = TwoTasks("upgrad", log=["loss", "weight", "norm", "cosine"])
    expected = fit(module, epochs=1, data=batches(3, 8)).callback_metrics
    for rank in ranks:
        assert rank["metrics"] == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-6)


def test_one_process_resumes_a_checkpoint_of_two_ranks(ranks: Any, folder: Path) -> None:
    resumed, whole = TwoTasks("uw", Adam), TwoTasks("uw", Adam)
    fit(resumed, epochs=2, path=folder / "half.ckpt", data=batches(3, 8))
    close(parameters(resumed), in_one_process(whole))
    assert resumed.homogenized_loss.pipe.steps == whole.homogenized_loss.pipe.steps == 6
    assert ranks[0]["state"] == ranks[1]["state"]


def test_heads_without_labels_train_as_in_one_process(ranks: Any) -> None:
    module, step = TwoTasks("upgrad"), iter(range(100))
    losses = module.losses

    def labelled(x: Tensor) -> Any:
        kind, even, depth = next(step) % 3, losses(x[EVEN]), losses(x)["depth"]
        return {"depth": even["depth"] if kind == 2 else depth, "normals": None if kind == 1 else even["normals"]}

    module.losses = labelled
    expected = in_one_process(module)
    for rank in ranks:
        close(rank["without labels"], expected)


def test_a_loop_of_fabric_is_that_of_one_process(ranks: Any) -> None:
    expected = fabric_loop("upgrad", batches(4, 8))
    for rank in ranks:
        close(rank["fabric", "none", True], rank["fabric", None, True])
        close(rank["fabric", "upgrad", True], expected)
        close(rank["fabric", "upgrad", False], expected)
    assert not torch.allclose(expected, ranks[0]["fabric", "none", True], rtol=1e-3)


def test_an_error_ends_all_ranks_before_a_parameter_changes(ranks: Any) -> None:
    for rank in ranks:
        assert rank["error"].startswith("NonfiniteError: task 1 of domain normals is not finite")


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("name", ["FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy"])
def test_strategies_that_shard_or_run_the_backward_pass_are_refused_also_on_one_device(name: str, devices: int) -> None:
    strategy = getattr(L.strategies, name)  # not created: it needs a GPU, DeepSpeed
    trainer: Any = SimpleNamespace(world_size=devices, callbacks=[], strategy=strategy.__new__(strategy))
    with pytest.raises(OptionError, match=rf"strategy='ddp', or one device; got {name} .devices: {devices}"):
        TwoTasks("upgrad").homogenized_loss.setup(trainer, None, "fit")
