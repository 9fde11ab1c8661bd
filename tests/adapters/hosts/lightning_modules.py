"""Small LightningModules in float64, and their training."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradhomog

L = pytest.importorskip("lightning.pytorch", reason="needs the extra `lightning`")

from torch.utils.data import DataLoader  # noqa: E402

from gradhomog_adapters.lightning import HomogenizedLoss  # noqa: E402

QUIET = {
    "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False,
    "logger": False,
}  # fmt: skip


class TwoTasks(L.LightningModule):
    """An encoder with two heads; returns the plain sum of the losses if `method` is None."""

    def __init__(self, method: str | None, optimizer: Any = torch.optim.SGD, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)  # the same parameters in every object
        self.encoder, self.depth, self.normals = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 1)
        self.double()
        self.homogenized_loss = None
        if method is not None:
            options = {"parameters": self.encoder, **options}
            self.homogenized_loss = HomogenizedLoss(gradhomog.pipeline(method), **options)
        self.optimizer = optimizer

    def features(self, x: Tensor) -> Tensor:
        return self.encoder(x).tanh()

    def losses(self, x: Tensor) -> dict[str, Tensor | None]:
        z = self.features(x)
        depth = (self.depth(z) - x[:, :1]).square().mean()
        return {"depth": depth, "normals": (10 * self.normals(z) - x[:, 1:2]).square().mean()}

    def loss(self, x: Tensor) -> Any:
        losses = self.losses(x)
        return sum(losses.values()) if self.homogenized_loss is None else self.homogenized_loss(losses)

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        return self.loss(batch.to(self.encoder.weight.dtype))

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("validation", self.loss(batch))

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters(), lr=1e-2)


class Manual(TwoTasks):
    """Manual optimization: one optimizer of the encoder, one of the heads."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        heads = [*self.depth.parameters(), *self.normals.parameters()]
        return self.optimizer(self.encoder.parameters(), lr=1e-2), self.optimizer(heads, lr=1e-3)

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        for optimizer in self.optimizers():
            optimizer.step()


def batches(count: int = 6, size: int = 4) -> Any:
    x = torch.randn(size * count, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return DataLoader(x, batch_size=size)


def fit(
    module: Any, epochs: int = 2, path: Any = None, validation: Any = None, data: Any = None,
    weights_only: bool | None = None, **options: Any,
) -> Any:  # fmt: skip
    """Train a module whose `homogenized_loss`, if any, is a callback of the trainer."""
    given = [] if module.homogenized_loss is None else [module.homogenized_loss]
    options = {**QUIET, "callbacks": given, **options}
    trainer = L.Trainer(max_epochs=epochs, **options)
    trainer.fit(module, batches() if data is None else data, validation, ckpt_path=path, weights_only=weights_only)
    return trainer


class Adversarial(L.LightningModule):
    """A generator and a discriminator with manual optimization: VQGAN's two steps.

    The weight of the adversarial loss is that of `balancer`, or, without `homogenized`, written by hand.
    """

    def __init__(self, homogenized: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.last, self.discriminator = nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(3, 1)
        self.double()
        self.automatic_optimization, self.homogenized_loss = False, None
        if homogenized:
            text = "balancer(average=0, primary='reconstruction', weights={'adversarial': 0.8}, scale='paper')"
            generator = nn.ModuleDict({"encoder": self.encoder, "last": self.last})
            options: dict[str, Any] = {"measure": "last.weight", "reduction": "mean"}
            self.homogenized_loss = HomogenizedLoss(gradhomog.pipeline(text), generator, **options)

    def configure_optimizers(self) -> Any:
        generator = [*self.encoder.parameters(), *self.last.parameters()]
        return torch.optim.Adam(generator, lr=1e-2), torch.optim.Adam(self.discriminator.parameters(), lr=1e-2)

    def training_step(self, x: Tensor, batch_idx: int) -> None:
        generator, discriminator = self.optimizers()
        z = self.encoder(x).tanh()
        y, codebook = self.last(z), 0.1 * z.square().mean()
        losses = {"reconstruction": (x - y).abs().mean(), "adversarial": -self.discriminator(y).mean()}
        if self.homogenized_loss is None:
            grads = [torch.autograd.grad(loss, self.last.weight, retain_graph=True)[0] for loss in losses.values()]
            weight = 0.8 * (grads[0].norm() / grads[1].norm()).clamp(0, 1e4).detach()
            total = losses["reconstruction"] + weight * losses["adversarial"]
        else:
            total = self.homogenized_loss(losses)
        generator.zero_grad()
        self.manual_backward(total + codebook)
        generator.step()
        discriminator.zero_grad()
        real, fake = self.discriminator(x), self.discriminator(y.detach())
        self.manual_backward((1 - real).relu().mean() + (1 + fake).relu().mean())
        discriminator.step()
