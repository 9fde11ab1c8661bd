"""Functions that run on every rank, with models whose backward passes have collective operations."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import gradhomog
from gradhomog import Ranks
from tests.ranks.cases import data, error_of


class AllReduce(torch.autograd.Function):
    """The sum over the ranks; its backward pass is the sum of the gradients over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return AllReduce.forward(ctx, grad)


class SynchronizedNorm(nn.Module):
    """Batch normalization over the examples of all ranks; `nn.SyncBatchNorm` requires a GPU."""

    def forward(self, x: Tensor) -> Tensor:
        sums: Tensor = AllReduce.apply(torch.stack([x, x.square(), torch.ones_like(x)]).sum(1))  # type: ignore[no-untyped-call]
        mean, square, _ = sums / sums[2]
        return (x - mean) * torch.rsqrt(square - mean.square() + 1e-5)


class Model(nn.Module):
    """An encoder and two heads with normalization; the third task has no head."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layers = [nn.Linear(4, 5, bias=False), SynchronizedNorm(), nn.Tanh(), nn.Linear(5, 3)]
            self.encoder = nn.Sequential(*layers)
            self.heads = nn.ModuleList(nn.Sequential(nn.Linear(3, 2, bias=False), SynchronizedNorm()) for _ in range(2))
        self.double()

    def forward(self, z: Tensor) -> list[Tensor]:
        """Return one output per task."""
        return [*(head(z)[:, 0] for head in self.heads), z[:, 0]]


UNLABELLED = {"none": {}, "task 2 on rank 1": {2: range(4, 12)}, "task 1 on rank 0": {1: range(4)}}
"""For each case the tasks that have no labels of some rows."""
BATCHES = [([0, 1], [4, 5, 6, 7]), ([2, 3], [8, 9, 10, 11])]
"""For each of two batches the rows of rank 0 and of rank 1."""


def take_step(
    text: str, call: str, unlabelled: str = "none", *, without: str = "zero", model: Model | None = None
) -> list[Tensor | None]:
    """Return the gradients of a step in one process, or with rows 0 to 3 on rank 0 and the others on rank 1.

    Args:
        without: the loss of a task without labels on a rank: `"zero"` times its output, `"nan"` times it, or `"none"`.
    """
    (x, y), pipe, model = data(), gradhomog.pipeline(text), model or Model()
    labelled = torch.ones_like(y)
    for task, rows in UNLABELLED[unlabelled].items():
        labelled[rows, task] = 0
    several = dist.get_world_size() > 1
    batches = [list(batch[dist.get_rank()]) if several else batch[0] + batch[1] for batch in BATCHES]
    every = batches[0] + batches[1]
    counts = labelled[every].sum(0)
    options: dict[str, Any] = {"parameters": model.encoder}
    if several:
        options["group"] = Ranks("batch", examples=counts.tolist())
    absent = {"zero": 0.0, "nan": torch.nan}

    def losses(z: Tensor, rows: list[int]) -> list[Tensor | None]:
        found: list[Tensor | None] = []
        for task, output in enumerate(model(z)):
            squares = (output - y[rows, task]).square() * labelled[rows, task]
            if counts[task]:
                found.append(squares.sum() / counts[task])
            else:
                found.append(absent[without] * output.sum() if without in absent else None)
        return found

    if call == "accumulated":
        with gradhomog.accumulated(pipe, **options) as batch:
            for rows in batches:
                batch.add(losses(model.encoder(x[rows]), rows))
    else:
        z = model.encoder(x[every])
        if call == "features":
            options |= {"features": z, "level": "features"}
        gradhomog.backward(losses(z, every), pipe, **options)
    return [parameter.grad for parameter in model.parameters()]


def message(*arguments: Any, **options: Any) -> str:
    """Return the error of a step."""
    model = Model()
    return error_of(lambda: take_step(*arguments, **options, model=model), model)
