"""Two regressions with a model that `fully_shard` (FSDP2) splits over the ranks.

torchrun --nproc-per-node=2 docs/examples/fsdp2_multitask.py upgrad
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import fully_shard

import gradhomog


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.input = nn.Linear(10, 64)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(3))
        self.heads = nn.ModuleList(nn.Linear(64, 1) for _ in range(2))

    def forward(self, x):
        z = self.input(x)
        for block in self.blocks:
            z = z + block(z)
        return [head(z) for head in self.heads]


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("homogenizers", nargs="?", default="upgrad")
parser.add_argument("--steps", type=int, default=100)
options = parser.parse_args()
dist.init_process_group("gloo")  # on GPUs "nccl", after torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
rank, ranks = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)  # the same initial parameters on all ranks
model = Model()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
shared = {name: value for name, value in model.named_parameters() if "heads" not in name}  # before the first forward
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # after fully_shard
pipe = gradhomog.pipeline(options.homogenizers)
for step in range(options.steps):
    x = torch.randn(64, 10, generator=torch.Generator().manual_seed(step))[rank::ranks]  # this rank's examples
    targets = torch.sin(x[:, :1]), 10 * x[:, 1:2] * x[:, :1]
    losses = [(output - target).square().mean() for output, target in zip(model(x), targets, strict=True)]
    optimizer.zero_grad()
    found = gradhomog.backward(losses, pipe, parameters=shared, group=gradhomog.Ranks("batch", examples=len(x)))
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
state, _ = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))  # save with the pipe's
if rank == 0:
    print("smallest cosine:", f"{found.cosines.min():.4f}", "norm:", f"{state['input.weight'].norm():.4f}")
dist.destroy_process_group()
