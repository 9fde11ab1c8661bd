"""Functions that run on every rank of a process group, and homogenize groups of parameters separately (`per`)."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import gradhomog
from gradhomog import Ranks
from tests.ranks.cases import STEPS, Model, data, descend, losses_of, part_of, result
from tests.ranks.recording import recorded

PER: dict[str, Any] = {
    "layer": "layer",
    "tensor": "tensor",
    "patterns in another order": {"last": "2.*", "first": "*"},
    "patterns of several layers": {"biases": "*.bias", "weights": "*"},
}
"""Groups of the parameters of the encoder."""


def task_absent_on_rank_1(text: str, sizes: Sequence[int], per: Any) -> dict[str, Any]:
    """Return the result of steps without heads, in which only the first seven examples have labels of task 2."""
    (x, y), pipe, model, part = data(), gradhomog.pipeline(text), Model().encoder, part_of(sizes)
    labelled = slice(0, 7)
    group = Ranks("batch", examples=sizes[dist.get_rank()]) if len(sizes) > 1 else None
    found = []
    for _ in range(STEPS):
        losses: list[Tensor | None] = [(model(x)[part] - y[part])[:, task].square().mean() for task in range(2)]
        losses.append((model(x) - y)[labelled, 2].square().mean() if dist.get_rank() == 0 else None)
        gradhomog.backward(losses, pipe, parameters=model, per=per, group=group)
        found += descend(model)
    return result(found, pipe, model)


def infinite_in_one_group(text: str, sizes: Sequence[int]) -> dict[str, Any]:
    """Return the result of steps whose task 1 has an infinite gradient in one layer, on the last rank."""
    (x, y), model, part = data(), Model(), part_of(sizes)
    pipe = gradhomog.pipeline(text, nonfinite="drop")
    group = Ranks("batch", examples=sizes[dist.get_rank()]) if len(sizes) > 1 else None
    found, weight = [], model.encoder[2].weight
    for _ in range(STEPS):
        losses = losses_of(model(x[part]), y[part])
        if dist.get_rank() == len(sizes) - 1:
            losses[1] = losses[1] + (weight - weight.detach()).sum().sqrt()
        step = gradhomog.backward(losses, pipe, parameters=model.encoder, per="layer", group=group)
        assert step.tasks == (0, 2)
        found += descend(model)
    return result(found, pipe, model)


def tasks(text: str, counts: Sequence[int], per: Any = "model") -> dict[str, Any]:
    """Return the result of some steps whose tasks are distributed, with `counts[r]` tasks on rank r."""
    (x, y), pipe, model = data(), gradhomog.pipeline(text), Model().encoder
    number, group = sum(counts), Ranks("tasks") if len(counts) > 1 else None
    found = []
    for _ in range(STEPS):
        mine = range(number)[part_of(counts)]
        losses = {f"{task}": (model(x[task::number]) - y[task::number]).square().mean() for task in mine}
        step = gradhomog.backward(losses, pipe, parameters=model, per=per, group=group)
        assert step.tasks == tuple(range(number))
        found += descend(model)
    return result(found, pipe, model)


class Mixed(nn.Module):
    """A layer in float32, one in float64, a parameter without elements, and one that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3).double()
        self.empty, self.unused = nn.Parameter(torch.empty(0)), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.second(self.first(x.float()).tanh().double())
        return output


def mixed_dtypes(per: Any, sizes: Sequence[int]) -> list[Tensor]:
    """Return the gradients of a step of `Mixed`, without those that are None."""
    (x, y), model, part = data(), Mixed(), part_of(sizes)
    group = Ranks("batch", examples=sizes[dist.get_rank()]) if len(sizes) > 1 else None
    losses = list((model(x[part]) - y[part]).square().mean(0))
    gradhomog.backward(losses, gradhomog.pipeline("upgrad"), parameters=model, per=per, group=group)
    return descend(model)


def messages(per: Any) -> dict[str, Any]:
    """Return the number of collective operations of a step without heads, by kind, and the bytes of its rows."""
    (x, y), model = data(), Model().encoder
    losses = list((model(x) - y).square().mean(0))
    with recorded() as found:
        gradhomog.backward(losses, gradhomog.pipeline("upgrad"), parameters=model, per=per, group=Ranks("batch"))
    return {**found.calls, "bytes": found.sent["reduce_scatter"]}


def overflow_on_rank_1(text: str, per: Any, local: bool) -> list[tuple[float, int, bool]]:
    """Return after a step that overflows, and after a second: the scale of a gradient scaler, the steps, if it changed.

    The steps are those of every group.
    """
    (x, y), model, pipe = data(), Model(torch.float32), gradhomog.pipeline(text)
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=1024.0), torch.optim.SGD(model.parameters(), lr=0.01)
    weight, found = model.encoder[2].weight, []
    for infinite in (dist.get_rank() == 1, False):
        optimizer.zero_grad()
        losses, before = losses_of(model(x.float()), y.float()), [parameter.clone() for parameter in model.parameters()]
        if infinite:
            losses[1] = losses[1] + (weight - weight.detach()).sum().sqrt()
        gradhomog.backward(
            losses, pipe, parameters=model.encoder, scaler=scaler, per=per, group=Ranks("batch", local=local)
        )
        scaler.step(optimizer)
        scaler.update()
        (steps,) = {part.steps for part in (pipe, *pipe.groups.values())}
        found.append((scaler.get_scale(), steps, not all(map(torch.equal, before, model.parameters()))))
    return found
