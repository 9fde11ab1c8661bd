"""Two regressions whose targets differ in magnitude, in Lightning, with homogenized gradients of their losses.

python docs/examples/lightning_multitask.py aligned_mtl --epochs 10
"""

import argparse

import lightning.pytorch as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradhomog
from gradhomog_adapters.lightning import HomogenizedLoss

TASKS = {"temperature": 10.0, "humidity": 0.1}  # standard deviations of the targets


class Weather(L.LightningModule):
    def __init__(self, homogenizers):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.heads = nn.ModuleDict({name: nn.Linear(32, 1) for name in TASKS})
        self.homogenized_loss = HomogenizedLoss(gradhomog.pipeline(homogenizers), self.encoder)

    def losses(self, x, targets):
        z = self.encoder(x)
        pairs = zip(self.heads.items(), targets.unbind(1), strict=True)
        return {name: nn.functional.mse_loss(head(z)[:, 0], target) for (name, head), target in pairs}

    def training_step(self, batch, batch_idx):
        return self.homogenized_loss(self.losses(*batch))

    def validation_step(self, batch, batch_idx):
        self.log_dict({f"nmse/{name}": loss / TASKS[name] ** 2 for name, loss in self.losses(*batch).items()})

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def data(points):
    x = torch.randn(points, 8)
    targets = torch.stack([(x[:, 0] * x[:, 1] + x[:, 2]) / 2**0.5, (2 * x[:, 3]).sin() * 2**0.5], 1)
    return TensorDataset(x, targets * torch.tensor([*TASKS.values()]))


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("homogenizers", nargs="?", default="aligned_mtl")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()
L.seed_everything(options.seed, verbose=False)
training, validation = DataLoader(data(4096), 64, shuffle=True), DataLoader(data(1024), 1024)
model = Weather(options.homogenizers)
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "enable_checkpointing": False}
trainer = L.Trainer(max_epochs=options.epochs, accelerator="cpu", callbacks=[model.homogenized_loss], **quiet)
trainer.fit(model, training, validation)
print("\n".join(f"{name}: {float(value):.4g}" for name, value in sorted(trainer.callback_metrics.items())))
