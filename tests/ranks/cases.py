"""Functions that run on every rank of a process group; they return numbers that a test compares."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradhomog
from gradhomog import GradhomogError, Pipeline, Ranks
from tests.adapters import checks
from tests.autograd.networks import take_step
from tests.ranks.recording import recorded

STEPS = 3


class Model(nn.Module):
    """A shared encoder and three heads."""

    def __init__(self, dtype: torch.dtype = torch.float64, width: int = 5) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.encoder = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))
            self.heads = nn.ModuleList(nn.Linear(3, 1) for _ in range(3))
        self.to(dtype)

    def forward(self, x: Tensor) -> list[Tensor]:
        z = self.encoder(x)
        return [head(z)[:, 0] for head in self.heads]

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters() if parameter.grad is not None]


def data(examples: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(examples, 4, dtype=torch.float64, generator=generator)
    return x, torch.randn(examples, 3, dtype=torch.float64, generator=generator) * torch.tensor([1.0, 3.0, 10.0])


def losses_of(outputs: Sequence[Tensor], y: Tensor) -> list[Tensor]:
    return [(output - target).square().mean() for output, target in zip(outputs, y.unbind(1), strict=True)]


def batches_of(call: str, losses: Callable[[Tensor, Tensor], list[Tensor]], x: Tensor, y: Tensor) -> Iterator[Any]:
    """Yield means over all examples, or over two parts with their shares or numbers of examples for several batches."""
    if call == "window":
        for part in (slice(0, 1), slice(1, None)):
            if len(x[part]):
                yield losses(x[part], y[part]), len(x[part]), part.stop is None or len(x) == 1
        return
    for part in (slice(0, 1), slice(1, None)) if call == "accumulated" else (slice(None),):
        yield [len(x[part]) / len(x) * loss for loss in losses(x[part], y[part])]


def part_of(sizes: Sequence[int]) -> slice:
    """The examples of this rank."""
    start = sum(sizes[: dist.get_rank()])
    return slice(start, start + sizes[dist.get_rank()])


def error_of(step: Callable[[], object], model: nn.Module) -> str:
    """Return the class and message of the error of a step, which must not write gradients."""
    try:
        step()
    except GradhomogError as error:
        assert all(parameter.grad is None for parameter in model.parameters()), "gradients were written"
        return f"{type(error).__name__}: {error}"
    return "no error"


def descend(model: nn.Module) -> list[Tensor]:
    """Take a step of gradient descent; return the gradients of the parameters that have one, and remove them."""
    found = []
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                found.append(parameter.grad)
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
    return found


def result(gradients: list[Tensor], pipe: Pipeline, model: nn.Module) -> dict[str, Any]:
    parameters = {name: value.detach() for name, value in model.state_dict().items()}
    return {"gradients": gradients, "state": pipe.state_dict(), "parameters": parameters}


def batch(
    text: str, sizes: Sequence[int], *, call: str = "backward", per: Any = "model", gather: bool = False,
    steps: int = STEPS, start: dict[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the result of some steps with `sizes[r]` examples on rank r.

    `start`: an earlier result, to continue from its parameters and state.
    """
    (x, y), pipe, model, part = data(), gradhomog.pipeline(text), Model(), part_of(sizes)
    if start is not None:
        model.load_state_dict(start["parameters"])
        pipe.load_state_dict(start["state"])
    examples = None if call == "window" or len(sizes) == 1 else sizes[dist.get_rank()]
    group = Ranks("batch", examples=examples, gather=gather) if len(sizes) > 1 else None
    found = []
    for _ in range(steps):
        batches = batches_of(call, lambda x, y: losses_of(model(x), y), x[part], y[part])
        take_step(call, batches, pipe, parameters=model.encoder, per=per, group=group)
        found += descend(model)
    return result(found, pipe, model)


def wrapped_model(synchronize: bool) -> list[Tensor]:
    """Return the gradients of `gradhomog.loss` over a model in DistributedDataParallel."""
    x, y = data()
    part = part_of([6, 6])
    model = Model()
    replica = DistributedDataParallel(model)
    with nullcontext() if synchronize else replica.no_sync():
        total = gradhomog.loss(
            losses_of(replica(x[part]), y[part]), gradhomog.pipeline("upgrad"), parameters=model.encoder,
            group=Ranks("batch"),
        )  # fmt: skip
        total.backward()
    return [gradient.clone() for gradient in model.gradients()]


def local_directions() -> dict[str, Any]:
    """Return the gradients with `local=True`, and what was exchanged by the report."""
    x, y = data()
    model, reports = Model(), []
    part = part_of([6, 6])
    gradhomog.loss(
        losses_of(model(x[part]), y[part]), gradhomog.pipeline("pcgrad"), parameters=model.encoder,
        group=Ranks(local=True), report=reports.append,
    ).backward()  # fmt: skip
    return {"gradients": model.gradients(), "exchanged": reports[0].exchanged}


def learner_steps(name: str, text: str, counts: Sequence[int], local: bool = False) -> dict[str, Any]:
    """Return a learner's parameters after some meta-steps with `counts[r]` tasks on rank r, and the last report."""
    encoder, head = checks.networks()
    learner = gradhomog.learner(name, encoder, head, homogenizers=text)
    outer = torch.optim.Adam(learner.parameters(), lr=0.01)
    group = Ranks("tasks", local=local) if len(counts) > 1 else None
    for step in range(STEPS):
        tasks = list(checks.tasks(sum(counts), seed=step))
        report = learner.step(tasks[part_of(counts)], outer, group=group)
    return {
        "parameters": [parameter.detach() for parameter in learner.parameters()],
        "losses": report.losses, "domains": list(report.names),
    }  # fmt: skip


class LayerOfRankZero(nn.Module):
    """Adds a layer on rank 0 only, and has another one that is not called."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.partly, self.never = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(self.partly(x) if dist.get_rank() == 0 else x)


def learner_gradients_of_unused_layers(engine: str, local: bool) -> dict[str, bool]:
    """Return for each layer of `LayerOfRankZero` if it has a gradient after a meta-step."""
    encoder, head = checks.networks()
    whole = LayerOfRankZero(encoder)
    learner = gradhomog.learner("protonet", whole, head, engine=engine)
    outer = torch.optim.AdamW(learner.parameters(), lr=0.01)
    learner.step(checks.tasks(2), outer, group=Ranks("tasks", local=local))
    layers = {"partly": whole.partly, "never": whole.never, "head": head}
    return {name: layer.weight.grad is not None for name, layer in layers.items()}


def bytes_sent(over: str, tasks: int, width: int, text: str = "pcgrad") -> dict[str, int]:
    """Return the bytes of the parameters of a square layer, and those that this rank sends in a step."""
    model = nn.Linear(width, width, bias=False)
    losses = [(task + 1) * model(torch.ones(1, width)).square().mean() for task in range(tasks)]
    ranks: Any = Ranks(over)  # type: ignore[arg-type]
    with recorded() as found:
        gradhomog.backward(losses, gradhomog.pipeline(text), parameters=model, group=ranks)
    return {"parameters": 4 * width * width, "total": sum(found.sent.values())}


def bytes_sent_before_each_pass(tasks: int, width: int) -> dict[str, Any]:
    """Return the bytes of rows that this rank has begun to send when each task's backward pass begins."""
    model, before = nn.Linear(width, width, bias=False), list[int]()
    losses = [(task + 1) * model(torch.ones(1, width)).square().mean() for task in range(tasks)]
    with recorded() as found:
        for loss in losses:
            loss.register_hook(lambda gradient: before.append(found.sent["reduce_scatter"]))
        gradhomog.backward(losses, gradhomog.pipeline("pcgrad"), parameters=model, group=Ranks("batch"))
    return {"parameters": 4 * width * width, "before": before}


def half_precision(sizes: Sequence[int]) -> list[Tensor]:
    """Return the gradients of a step of a model in bfloat16."""
    x, y = (tensor.to(torch.bfloat16) for tensor in data())
    part, model = part_of(sizes), Model(torch.bfloat16)
    group = Ranks("batch", examples=sizes[dist.get_rank()])
    losses = losses_of(model(x[part]), y[part])
    gradhomog.backward(losses, gradhomog.pipeline("upgrad"), parameters=model.encoder, group=group)
    return model.gradients()
