"""Clicks and conversions of synthetic users and items, with torch-rechub and homogenized gradients.

python docs/examples/torch_rechub_multitask.py upgrad --epochs 3
"""

import argparse
import tempfile

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch_rechub.basic.features import DenseFeature, SparseFeature
from torch_rechub.models.multi_task import MMOE

import gradhomog
from gradhomog_adapters.torch_rechub import HomogenizedMTLTrainer

TASKS = ["classification", "classification"]
USERS, ITEMS = 200, 100


def data(points, seed):
    """Tastes of users for items decide on clicks; the price, which differs from the taste, on conversions."""
    tastes = torch.Generator().manual_seed(0)
    user_tastes, item_tastes = torch.randn(USERS, 4, generator=tastes), torch.randn(ITEMS, 4, generator=tastes)
    budgets, generator = torch.randn(USERS, generator=tastes), torch.Generator().manual_seed(seed)
    user, item = (torch.randint(size, (points,), generator=generator) for size in (USERS, ITEMS))
    price = torch.randn(points, generator=generator)
    click = (user_tastes[user] * item_tastes[item]).sum(1) - 1.5 + torch.randn(points, generator=generator) > 0
    conversion = click & (budgets[user] - price - 1 + torch.randn(points, generator=generator) > 0)
    return TensorDataset(user, item, price, torch.stack([click, conversion], 1))


def collate(rows):
    user, item, price, y = (torch.stack(column) for column in zip(*rows, strict=True))
    return {"user": user, "item": item, "price": price}, y


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("homogenizers", nargs="?", default="upgrad")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--points", type=int, default=20_000)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()
torch.manual_seed(options.seed)
training = DataLoader(data(options.points, 1), 256, shuffle=True, collate_fn=collate)
test = DataLoader(data(options.points // 4, 2), 1024, collate_fn=collate)
features = [SparseFeature("user", USERS, 8), SparseFeature("item", ITEMS, 8), DenseFeature("price")]
model = MMOE(features, TASKS, n_expert=4, expert_params={"dims": [32]}, tower_params_list=[{"dims": [16]}] * 2)
method = {"method": gradhomog.pipeline(options.homogenizers)}
with tempfile.TemporaryDirectory() as folder:
    trainer = HomogenizedMTLTrainer(
        model, TASKS, optimizer_params={"lr": 3e-3}, adaptive_params=method, n_epoch=options.epochs, model_path=folder
    )
    trainer.fit(training, test)
for name, score in zip(("click", "conversion"), trainer.evaluate(model, test), strict=True):
    print(f"AUC/{name}: {score:.4g}")
