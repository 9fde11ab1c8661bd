"""Functions that run on every rank of a process group, with homogenizers that read features or residuals."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

import gradhomog
from gradhomog import GradhomogError, Pipeline, Ranks
from tests.ranks.cases import STEPS, Model, data, descend, error_of, part_of
from tests.ranks.recording import recorded


def take_step(pipe: Pipeline, kind: str, model: Model, x: Tensor, y: Tensor, group: Ranks | None) -> None:
    """Write the gradients of a step of some kind, by `loss` for `"level by loss"`, otherwise by `backward`."""
    z = model.encoder(x)
    views = gradhomog.task_features(z, pipe, tasks=3) if kind == "views" else None
    inputs = views or [z] * 3
    residuals = [
        head(view)[:, 0] - y[:, task] for task, (head, view) in enumerate(zip(model.heads, inputs, strict=True))
    ]
    losses = [residual.square().mean() for residual in residuals]
    options: dict[str, Any] = {"parameters": model.encoder, "group": group}
    if kind == "residuals":
        gradhomog.backward(losses, pipe, residuals=residuals, **options)
    elif kind == "views":
        gradhomog.backward(losses, pipe, features=views, **options)
    elif kind == "features":
        gradhomog.backward(losses, pipe, features=z, **options)
    elif kind == "measure":
        gradhomog.backward(losses, pipe, measure="2.*", **options)
    elif kind == "level":
        gradhomog.backward(losses, pipe, features=z, level="features", **options)
    else:
        gradhomog.loss(losses, pipe, features=z, level="features", **options).backward()


def steps(text: str, sizes: Sequence[int], kind: str, gather: bool = False) -> dict[str, Any]:
    """Return the gradients of some steps with `sizes[r]` examples on rank r, and the state of the pipeline."""
    (x, y), pipe, model = data(), gradhomog.pipeline(text), Model()
    part = part_of(sizes)
    group = Ranks("batch", examples=sizes[dist.get_rank()], gather=gather) if len(sizes) > 1 else None
    found = []
    for _ in range(STEPS):
        take_step(pipe, kind, model, x[part], y[part], group)
        found += descend(model)
    return {"gradients": found, "state": pipe.state_dict()}


def bytes_sent(text: str, kind: str) -> dict[str, int]:
    """Return the bytes that this rank sends in a step, and those of the encoder's parameters."""
    (x, y), model = data(), Model()
    with recorded() as found:
        take_step(gradhomog.pipeline(text), kind, model, x, y, Ranks("batch"))
    return dict(found.sent)


def message(case: str) -> str:
    """Return the class and message of the error of a step that cannot be taken on every rank."""
    (x, y), model = data(), Model()
    pipe = gradhomog.pipeline("rotograd" if case == "absent" else "upgrad")
    z = model.encoder(x)
    views = gradhomog.task_features(z, pipe, tasks=3)
    losses: list[Tensor | None] = [
        (head(view)[:, 0] - y[:, task]).square().mean()
        for task, (head, view) in enumerate(zip(model.heads, views, strict=True))
    ]
    options: dict[str, Any] = {"parameters": model.encoder, "group": Ranks("batch"), "features": views}
    if case == "absent":  # losses without heads, which would have to be the same on all ranks
        losses = [None if task == dist.get_rank() else view.square().mean() for task, view in enumerate(views)]
    elif case == "other shapes":
        pipe = gradhomog.pipeline("graddrop")
        z = z[:, None].expand(-1, 1 + dist.get_rank(), -1)  # [batch, 1 on rank 0 and 2 on rank 1, 3]
        losses = [head(z).square().mean() for head in model.heads]
        options |= {"group": Ranks("batch", gather=True), "level": "features", "features": z}
    elif case == "local":
        options |= {"group": Ranks(local=True), "level": "features"}
    elif case == "measured tensor":
        options = {"parameters": model.encoder, "group": Ranks("batch"), "measure": z}
    elif case == "backward fails on rank 1":
        options["level"] = "features"
        if dist.get_rank() == 1:
            model.encoder[0].weight.register_hook(fail)
    return error_of(lambda: gradhomog.backward(losses, pipe, **options), model)


def fail(gradient: Tensor) -> None:
    raise GradhomogError("this pass fails")
