"""`HomogenizedMTLTrainer` with torch-rechub itself: "none" is `MTLTrainer`, the direction is that of the pipeline."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SparseAdam
from torch.utils.data import DataLoader, TensorDataset

import gradhomog
from gradhomog import MomentumWarning, NonfiniteError, OptionError

pytest.importorskip("torch_rechub", reason="needs the extra `torch-rechub`")

from torch_rechub.basic.features import DenseFeature, SparseFeature
from torch_rechub.models.multi_task import AITM, ESMM, MMOE, PLE, SharedBottom
from torch_rechub.trainers import MTLTrainer

from gradhomog_adapters.torch_rechub import HomogenizedMTLTrainer

from . import measures

TASKS = ["classification", "regression"]
LAYERS: dict[str, Any] = {"dims": [6]}
TOWERS = [LAYERS, LAYERS]
UPGRAD = gradhomog.pipeline("upgrad")


def features() -> list[Any]:
    """New ones for each model: a feature keeps the embedding that its first model has made."""
    return [SparseFeature("user", 5, 4), SparseFeature("item", 4, 4), DenseFeature("price")]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "SharedBottom": lambda: SharedBottom(features(), TASKS, LAYERS, TOWERS),
    "MMOE": lambda: MMOE(features(), TASKS, 2, LAYERS, TOWERS),
    "PLE": lambda: PLE(features(), TASKS, 1, 1, 1, LAYERS, TOWERS),
    "AITM": lambda: AITM(features(), 2, LAYERS, TOWERS),
    "ESMM": lambda: ESMM(features()[:1], features()[1:2], LAYERS, LAYERS),
    "ESMM of two labels": lambda: ESMM(features()[:1], features()[1:2], LAYERS, LAYERS),  # it trains on one loss
    "MMOE of one task": lambda: MMOE(features(), TASKS[:1], 2, LAYERS, TOWERS[:1]),
}


def tasks_of(kind: str) -> list[str]:
    numbers = {"AITM": 2, "ESMM": 3, "ESMM of two labels": 2, "MMOE of one task": 1}
    return ["classification"] * numbers[kind] if kind in numbers else TASKS


def collate(rows: Any) -> Any:
    user, item, price, y = (torch.stack(column) for column in zip(*rows, strict=True))
    return {"user": user, "item": item, "price": price}, y


def batches(labels: int, size: int = 16) -> Any:
    generator = torch.Generator().manual_seed(3)
    user, item = (torch.randint(high, (48,), generator=generator) for high in (5, 4))
    price = torch.randn(48, generator=generator)
    y = torch.stack([(user + item + price + shift > 4).float() for shift in range(labels)], 1)
    return DataLoader(TensorDataset(user, item, price, y), size, collate_fn=collate)


def trained(kind: str, trainer: Any, folder: Path, epochs: int = 2, **options: Any) -> Any:
    """Train the model `kind` and return the trainer and the log of `fit`."""
    torch.manual_seed(0)
    model, tasks = MODELS[kind](), tasks_of(kind)
    created = trainer(model, tasks, n_epoch=epochs, model_path=str(folder), **options)
    data = batches(len(tasks))
    return created, created.fit(data, data)


def parameters(trainer: Any) -> Tensor:
    return measures.parameters(trainer.model)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("kind", MODELS)
def test_without_homogenizers_training_is_that_of_the_host(kind: str, optimizer: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "optimizer_fn": optimizer,
        "regularization_params": {"embedding_l2": 1e-3, "dense_l2": 1e-3},
        "scheduler_fn": torch.optim.lr_scheduler.StepLR,
        "scheduler_params": {"step_size": 1, "gamma": 0.5},
        "optimizer_params": {"lr": 1e-2, "weight_decay": 1e-3},
    }
    plain, plain_log = trained(kind, MTLTrainer, tmp_path, **options)
    method = {"method": gradhomog.pipeline("none")}
    found, log = trained(kind, HomogenizedMTLTrainer, tmp_path, adaptive_params=method, **options)
    torch.testing.assert_close(parameters(found), parameters(plain), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(log, plain_log, rtol=1e-4, atol=1e-5)
    assert torch.load(tmp_path / "model_base_0.pth").keys() == plain.model.state_dict().keys()


@pytest.mark.parametrize("kind", MODELS)
def test_a_step_is_that_of_a_custom_loop(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, tasks = MODELS[kind](), tasks_of(kind)
    net = copy.deepcopy(model)
    adaptive = {"method": gradhomog.pipeline("upgrad"), "parameters": model.embedding, "inspect": True}
    options: dict[str, Any] = {
        "optimizer_fn": torch.optim.SGD, "optimizer_params": {"lr": 0.1}, "n_epoch": 1,
        "regularization_params": {"embedding_l2": 0.05, "dense_l2": 0.05},
    }  # fmt: skip
    trainer = HomogenizedMTLTrainer(model, tasks, adaptive_params=adaptive, model_path=str(tmp_path), **options)
    data = batches(len(tasks), size=48)
    trainer.fit(data, data)

    x, y = next(iter(data))
    outputs = net(x)
    losses = [loss(outputs[:, task], y[:, task]) for task, loss in enumerate(trainer.loss_fns)]
    if kind.startswith("ESMM"):  # torch-rechub does not train on the loss of the conversion
        losses = losses[1:]
    step = gradhomog.backward(losses, gradhomog.pipeline("upgrad"), parameters=net.embedding)
    regularization = torch.autograd.grad(
        trainer.reg_loss_fn(net), [*net.parameters()], allow_unused=True, materialize_grads=True
    )
    with torch.no_grad():
        for parameter, penalty in zip(
            net.parameters(), regularization, strict=True
        ):  # torch-rechub sums the losses of ESMM, and averages others
            shared = any(parameter is other for other in net.embedding.parameters())
            parameter -= (
                0.1 * parameter.grad * (len(losses) if shared else 1) / (1 if kind.startswith("ESMM") else len(losses))
            )
            parameter -= 0.1 * penalty
    expected = measures.parameters(net)
    torch.testing.assert_close(parameters(trainer), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(trainer.report.gramian, step.gramian, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("adaptive", [None, {"method": "uwl"}])
def test_the_methods_of_the_host_are_unchanged(adaptive: Any, tmp_path: Path) -> None:
    """Its `metabalance` and `gradnorm` raise an UnboundLocalError in version 0.9.0, here as there."""
    plain, _ = trained("SharedBottom", MTLTrainer, tmp_path, adaptive_params=adaptive)
    found, _ = trained("SharedBottom", HomogenizedMTLTrainer, tmp_path, adaptive_params=adaptive)
    assert torch.equal(parameters(found), parameters(plain))
    assert found.pipe is None


def test_every_logger_receives_weights_and_cosines_of_each_epoch(tmp_path: Path) -> None:
    loggers = [Mock(), Mock()]
    method = {"method": gradhomog.pipeline("imtl_g")}
    trained("MMOE", HomogenizedMTLTrainer, tmp_path, adaptive_params=method, model_logger=loggers)
    assert loggers[0].log_metrics.mock_calls == loggers[1].log_metrics.mock_calls
    for epoch in (0, 1):
        found: dict[str, float] = {}
        for logged in loggers[0].log_metrics.call_args_list:
            found |= logged.args[0] if logged.kwargs["step"] == epoch else {}
        assert found.keys() >= {"weight/task_0", "weight/task_1", "cosine/min", "train/task_0_loss"}
        assert -1 <= found["cosine/min"] <= 1
        # IMTL-G scales its weights, of which one may be negative, so that they sum to N.
        assert found["weight/task_0"] + found["weight/task_1"] == pytest.approx(2, abs=1e-4)


def test_a_loss_that_is_not_finite_raises_with_its_name(tmp_path: Path) -> None:
    method = {"method": gradhomog.pipeline("upgrad")}
    torch.manual_seed(0)
    trainer = HomogenizedMTLTrainer(MODELS["MMOE"](), TASKS, adaptive_params=method, model_path=str(tmp_path))
    x, y = next(iter(batches(2)))
    start = parameters(trainer)
    y[0, 1] = float("nan")
    with pytest.raises(NonfiniteError, match="task_1"):
        trainer.train_one_epoch([(x, y)])
    assert torch.equal(parameters(trainer), start)


def test_an_optimizer_that_averages_a_second_time_warns() -> None:
    with pytest.warns(MomentumWarning):
        HomogenizedMTLTrainer(MODELS["MMOE"](), TASKS, adaptive_params={"method": gradhomog.pipeline("tracked")})


@pytest.mark.parametrize(
    ("adaptive", "options", "message"),
    [
        ({"method": "upgrad"}, {}, "`method` must be a pipeline, such as gradhomog.pipeline('upgrad'), or one of uwl"),
        ({"method": 3}, {}, "got 3"),
        ({"method": "none", "alpha": 1}, {}, "got 'none'"),
        ({"method": UPGRAD, "alpha": 1}, {}, "'method' and arguments of gradhomog.loss; got alpha"),
        ({"method": UPGRAD, "reduction": "sum"}, {}, "got reduction"),
        ({"method": gradhomog.pipeline("rotograd")}, {}, "reads features, which torch-rechub does not compute"),
        ({"method": UPGRAD}, {"gpus": [0, 1]}, "`gpus` must have at most one entry"),
        ({"method": UPGRAD}, {"optimizer_fn": SparseAdam, "optimizer_params": {"lr": 1e-3}}, "gradients are dense"),
    ],
)
def test_a_method_or_an_option_that_cannot_work_raises(adaptive: Any, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        HomogenizedMTLTrainer(MODELS["MMOE"](), TASKS, adaptive_params=adaptive, **options)
