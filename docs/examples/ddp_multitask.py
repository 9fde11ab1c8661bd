"""Three regressions, data-parallel: any number of ranks computes the steps of one process with the whole batch.

torchrun --nproc-per-node=2 docs/examples/ddp_multitask.py imtl_g --checkpoint run.pt
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gradhomog

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("homogenizers", nargs="?", default="imtl_g")
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--checkpoint", type=Path)
options = parser.parse_args()

rank, ranks = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
if ranks > 1:
    dist.init_process_group("gloo")  # on GPUs "nccl", after torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)  # the same data and the same initial parameters on all ranks
x = torch.randn(2000, 10)
y = torch.stack([torch.sin(x[:, 0]), 10 * x[:, 1] * x[:, 0], 0.1 * x[:, 2].abs()], 1)
training = TensorDataset(x[:1600], y[:1600])
sampler = DistributedSampler(training, num_replicas=ranks, rank=rank)
batches = DataLoader(training, batch_size=64 // ranks, sampler=sampler)

encoder = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
heads = nn.ModuleList(nn.Linear(64, 1) for _ in range(3))
model, pipe = nn.ModuleList([encoder, heads]), gradhomog.pipeline(options.homogenizers)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
saved = {"model": model, "optimizer": optimizer, "pipe": pipe}
state = {"epochs": 0}
if options.checkpoint and options.checkpoint.exists():
    state = torch.load(options.checkpoint)  # on every rank; of any number of ranks
    for name, part in saved.items():
        part.load_state_dict(state[name])

for epoch in range(state["epochs"], options.epochs):
    sampler.set_epoch(epoch)
    for batch, targets in batches:
        z = encoder(batch)
        losses = [(head(z)[:, 0] - target).square().mean() for head, target in zip(heads, targets.T, strict=True)]
        optimizer.zero_grad()
        gradhomog.backward(losses, pipe, parameters=encoder, group=gradhomog.Ranks("batch", examples=len(batch)))
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)  # the gradients are the same on all ranks
        optimizer.step()
    if rank == 0 and options.checkpoint:
        torch.save({"epochs": epoch + 1, **{k: part.state_dict() for k, part in saved.items()}}, options.checkpoint)
if rank == 0:
    with torch.no_grad():
        errors = (torch.cat([head(encoder(x[1600:])) for head in heads], 1) - y[1600:]).square().mean(0) / y.var(0)
    print("nmse:", " ".join(f"{error:.4f}" for error in errors))
if ranks > 1:
    dist.destroy_process_group()
