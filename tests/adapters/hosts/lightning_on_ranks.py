"""Trainings with Lightning's DDP on two ranks, for `test_lightning_on_ranks.py`; started by torchrun."""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.utils.data import DataLoader

import gradhomog

from .lightning_modules import L, Manual, TwoTasks, batches, fit
from .measures import parameters
from .torchrun import error_of, save

from lightning.fabric import Fabric  # isort: skip

Adam, SGD = torch.optim.Adam, torch.optim.SGD
RANK = int(os.environ.get("RANK", 0))
DDP = {"strategy": "ddp", "devices": 2, "use_distributed_sampler": False}


def part(count: int = 3) -> Any:
    """Return this rank's part of the batches of eight: every second example. Lightning's sampler would shuffle."""
    x = batches(count, 8).dataset.view(count, 8, 3)[:, RANK::2]
    return DataLoader(x.flatten(0, 1), batch_size=4)


class Unused(TwoTasks):
    """With a parameter that no loss depends on."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.unused = nn.Parameter(torch.zeros(3, dtype=torch.float64))


class Penalized(TwoTasks):
    """With a loss of the data that is added to the homogenized ones."""

    def loss(self, x: Tensor) -> Any:
        return super().loss(x) + self.features(x).square().mean()


class NoopHook(L.Callback):
    """Omit the exchange of the wrapper; Lightning registers `DDPStrategy(ddp_comm_hook=...)` on GPUs only."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.strategy.model.register_comm_hook(None, noop_hook)


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "sgd": (TwoTasks, SGD, {}),
    "adam, accumulated and clipped": (TwoTasks, Adam, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}),
    "manual": (Manual, SGD, {}),
    "unused parameter": (Unused, SGD, {"strategy": "ddp_find_unused_parameters_true"}),
    "another loss": (Penalized, SGD, {}),
}
"""Module, optimizer, and options of the trainer, for which training on ranks is compared with that of one process."""


def main(out: str) -> None:
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for name, (kind, optimizer, options) in CASES.items():
        for method in (None, "none", "upgrad"):
            found[name, method] = trained(kind(method, optimizer), **options)
    hooked = TwoTasks("upgrad")
    found["noop hook"] = trained(hooked, callbacks=[hooked.homogenized_loss, NoopHook()])
    found["bf16"] = trained(TwoTasks("upgrad").float(), precision="bf16-mixed")
    found["metrics"] = metrics()
    found["state"] = stateful(Path(out))
    found["without labels"] = without_labels()
    found["error"] = not_finite()
    for method, exchange in ((None, True), ("none", True), ("upgrad", True), ("upgrad", False)):
        found["fabric", method, exchange] = fabric_loop(method, part(4), 2, exchange)
    save(out, found)


def trained(module: Any, **options: Any) -> Tensor:
    fit(module, data=part(), **DDP | options)
    return parameters(module)


def metrics() -> dict[str, float]:
    module = TwoTasks("upgrad", log=["loss", "weight", "norm", "cosine"])
    return {name: float(value) for name, value in fit(module, epochs=1, data=part(), **DDP).callback_metrics.items()}


def stateful(out: Path) -> dict[str, Any]:
    module = TwoTasks("uw", Adam)
    fit(module, epochs=1, data=part(), **DDP).save_checkpoint(out / "half.ckpt")
    return module.homogenized_loss.pipe.state_dict()


def fabric_loop(
    method: str | None, data: DataLoader[Any], ranks: int = 1, exchange: bool = True, precision: Any = "64-true",
    saved: Path | None = None,
) -> Tensor:  # fmt: skip
    """Train by Fabric, two batches for each step; the sum of the losses without `method`, saved in the middle.

    `exchange`: the wrapper averages gradients after the second batch.
    """
    torch.manual_seed(0)
    net, pipe = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), gradhomog.pipeline(method or "none")
    strategy = {"strategy": "ddp"} if ranks > 1 else {}
    fabric = Fabric(accelerator="cpu", devices=ranks, precision=precision, **strategy)
    fabric.launch()
    net, optimizer = fabric.setup(net, Adam(net.parameters(), lr=0.1))
    state = {"net": net, "optimizer": optimizer, "pipe": pipe}
    number = 0
    if saved is not None and saved.exists():
        fabric.load(saved, state)
        number = 2
    for x in [*fabric.setup_dataloaders(data, use_distributed_sampler=False)][number:]:
        number += 1
        with fabric.no_backward_sync(net, enabled=not exchange or number % 2 == 1):
            first, second = net(x).square().mean(0)
            total, losses = first + 100 * second, {"first": first, "second": 100 * second}
            if method is not None:
                group = gradhomog.Ranks("batch")
                total = gradhomog.loss(losses, pipe, parameters=net.module, reduction="sum", group=group)
            fabric.backward(total / 2)
        if number % 2 == 0:
            fabric.clip_gradients(net, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
        if number == 2 and saved is not None and not saved.exists():
            fabric.save(saved, state)
    return parameters(net)


def not_finite() -> str:
    """Return the error of a training with an infinite loss on one rank; no parameter has changed."""
    module = TwoTasks("upgrad")
    losses, before = module.losses, parameters(module)
    module.losses = lambda x: {**losses(x), "normals": losses(x)["normals"] * (torch.inf if RANK else 1)}
    found = error_of(lambda: trained(module))
    assert torch.equal(parameters(module), before)
    assert module.homogenized_loss.pipe.steps == 0
    return found


def without_labels() -> Tensor:
    """Train heads whose tasks have no labels: one on rank 1, then one on both, then both on rank 1."""
    module, step = TwoTasks("upgrad"), iter(range(100))
    losses = module.losses

    def labelled(x: Tensor) -> Any:
        kind, found = next(step) % 3, losses(x)
        if kind == 1 or RANK == 1:
            found["normals"] = None
        return {"depth": None, "normals": None} if kind == 2 and RANK == 1 else found

    module.losses = labelled
    return trained(module)


if __name__ == "__main__":
    main(sys.argv[1])
