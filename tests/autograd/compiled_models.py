"""A multi-task model whose parts are compiled, checkpointed or called functionally, and the entry points over it."""

import functools
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import gradhomog
from gradhomog import TaskBatch

from .networks import take_step

BACKEND = "aot_eager"  # the backward graphs of inductor, which compiles them to C++ in many seconds
INDUCTOR = "inductor" if shutil.which("g++") else BACKEND
TASKS = 3


class Encoder(nn.Sequential):
    """Two layers, in a class of the user: `Module.compile` of PyTorch's own containers compiles nothing."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x


class Net(nn.Module):
    """An encoder and three heads; `forward` returns the losses, which differ in magnitude."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.encoder = Encoder()
            self.heads = nn.ModuleList(nn.Linear(6, 2) for _ in range(TASKS))
        self.to(dtype)

    def losses(self, z: Tensor, x: Tensor) -> list[Tensor]:
        outputs = [head(z).float() if z.dtype == torch.bfloat16 else head(z) for head in self.heads]
        return [10.0**i * (output - x[:, i : i + 2]).square().mean() for i, output in enumerate(outputs)]

    def forward(self, x: Tensor) -> list[Tensor]:
        return self.losses(self.encoder(x), x)


class Checkpointed(nn.Module):
    """A module under activation checkpointing."""

    def __init__(self, inner: nn.Module, **options: Any) -> None:
        super().__init__()
        self.inner, self.options = inner, options

    def forward(self, x: Tensor) -> Tensor:
        if self.options["use_reentrant"]:
            x = x.detach().requires_grad_()  # without it the result has no graph
        found: Tensor = checkpoint(self.inner, x, **self.options)
        return found


class Functional(nn.Module):
    """A module that is called by `torch.func.functional_call`."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(self.inner, dict(self.inner.named_parameters()), (x,))
        return found


def save_products(context: Any, operation: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    products = (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if operation in products else CheckpointPolicy.PREFER_RECOMPUTE


def compiled(module: Any, backend: str = BACKEND, **options: Any) -> Any:
    return torch.compile(module, backend=backend, fullgraph=True, **options)


def compiled_in_place(module: nn.Module) -> nn.Module:
    module.compile(backend=BACKEND, fullgraph=True)
    return module


ENCODERS: dict[str, Callable[[nn.Module], Any]] = {
    "uncompiled": lambda encoder: encoder,
    "compiled encoder": functools.partial(compiled, backend=INDUCTOR),
    "`encoder.compile()`": compiled_in_place,
    "dynamic batch size": functools.partial(compiled, dynamic=True),
    "compiled encoder and heads": compiled,
    "compiled losses": lambda encoder: encoder,
    "checkpoint": functools.partial(Checkpointed, use_reentrant=False),
    "selective checkpoint": functools.partial(
        Checkpointed,
        use_reentrant=False,
        context_fn=functools.partial(create_selective_checkpoint_contexts, save_products),
    ),
    "reentrant checkpoint": functools.partial(Checkpointed, use_reentrant=True),
    "`torch.func`": Functional,
}


@functools.cache  # one compilation of each kind, for all entry points; no test changes parameters
def prepared(kind: str, dtype: torch.dtype = torch.float64) -> tuple[list[nn.Parameter], Callable[[Tensor], Any]]:
    """Return the encoder's and the heads' parameters, and a function that returns features (or None) and losses."""
    net = Net(dtype)
    parameters = list(net.parameters())
    encoder = ENCODERS[kind](net.encoder)
    if kind == "compiled encoder and heads":
        net.heads = nn.ModuleList(compiled(head) for head in net.heads)
    whole = compiled(net) if kind == "compiled losses" else None

    def forward(x: Tensor) -> Any:
        if whole is not None:
            return None, whole(x)
        z = encoder(x)
        return z, net.losses(z, x)

    return parameters, forward


def batches(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Two batches of different sizes, so that compiled functions are dynamic or compiled twice."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 5, dtype=torch.float64, generator=generator).to(dtype) for size in (7, 9)]


def shared(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    return parameters[:4]


def combine(kind: str, text: str) -> list[Tensor]:
    """Directions of rows that are computed by one `torch.autograd.grad` per loss."""
    parameters, forward = prepared(kind)
    pipe, directions = gradhomog.pipeline(text), []
    for x in batches():
        _, losses = forward(x)
        # Without `allow_unused`, as in a user's own loop: parameters of a reentrant checkpoint are not in the graph.
        rows = [torch.autograd.grad(loss, shared(parameters), retain_graph=True) for loss in losses]
        matrix = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
        directions.append(pipe.combine(matrix, losses=torch.stack(losses).detach()))
    return directions


def trained(call: str, kind: str, text: str, autocast: bool = False) -> list[Tensor]:
    """Gradients after a step on each batch; `call`: `"features"`, or that of `take_step`."""
    dtype = torch.float32 if autocast else torch.float64
    parameters, forward = prepared(kind, dtype)
    pipe, gradients = gradhomog.pipeline(text), []
    for x in batches(dtype):
        for parameter in parameters:
            parameter.grad = None
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            z, losses = forward(x)
        # The compiled function returns losses only.
        options = {"features": losses[0] if z is None else z, "level": "features"} if call == "features" else {}
        take_step(call, [losses], pipe, parameters=shared(parameters), **options)
        gradients += [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    return gradients


def learner(kind: str, text: str) -> list[Tensor]:
    """Parameters of MAML after a step."""
    net = Net()
    # Without `Encoder.forward`, which Dynamo would not compile any more after it has seen it within `vmap`.
    plain = nn.Sequential(*net.encoder)
    # The learner's own forms of the two kinds.
    options: dict[str, Any] = {"`torch.func`": {"engine": "vmap"}, "compiled losses": {"compile": BACKEND}}
    encoder = plain if kind == "`torch.func`" else ENCODERS[kind](plain)
    head = compiled(net.heads[0]) if kind == "compiled encoder and heads" else net.heads[0]
    made = gradhomog.learner(
        "maml", encoder, head, homogenizers=text, inner_lr=0.1, inner_steps=1, **options.get(kind, {"engine": "loop"})
    )
    outer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = batches()[0]
    y = torch.arange(len(x)) % 2
    batch = TaskBatch(torch.stack([x, 2 * x]), torch.stack([y, 1 - y]), torch.stack([x, -x]), torch.stack([y, y]))
    made.step(batch, outer)
    return [parameter.detach() for parameter in net.parameters()]


ENTRY_POINTS: dict[str, Callable[[str, str], list[Tensor]]] = {
    "`pipe.combine`": combine,
    "`backward`": functools.partial(trained, "backward"),
    '`backward(level="features")`': functools.partial(trained, "features"),
    "`loss`": functools.partial(trained, "loss"),
    "`accumulated`": functools.partial(trained, "accumulated"),
    "learner `maml`": learner,
}
