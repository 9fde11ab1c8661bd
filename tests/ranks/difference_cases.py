"""Functions that run on every rank of a process group, of which one rank does something else than the others."""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import gradhomog
from gradhomog import Ranks
from gradhomog.ranks.communicator import GroupCommunicator
from tests.adapters import checks
from tests.autograd.networks import take_step
from tests.ranks.cases import Model, data, error_of, losses_of, part_of


def one_rank_differs(what: str) -> str:
    """Return the error of a step to which rank 0 passes another option, pipeline or model."""
    (x, y), model, first = data(), Model(), dist.get_rank() == 0
    z = model.encoder(x)
    residuals = [head(z)[:, 0] - y[:, task] for task, head in enumerate(model.heads)]
    losses = [residual.square().mean() for residual in residuals]
    pipe, options = gradhomog.pipeline("uw"), dict[str, Any](parameters=model.encoder, features=z, group=Ranks("batch"))
    if what in ("initial values", "checkpoint of the pipeline only") and not first:
        nn.init.ones_(model.encoder[0].weight)
    if what in ("checkpoint of the pipeline only", "resumed"):
        pipe.combine(torch.eye(3), torch.ones(3))  # a step of the training before
    if what == "checkpoint of the pipeline only" or (what == "resumed" and first):
        pipe.load_state_dict(pipe.state_dict())
    if what == "nonfinite":
        pipe = gradhomog.pipeline("uw", nonfinite="drop" if first else "raise")
    elif what == "steps":
        pipe.steps = int(first)
    elif what == "residuals":
        pipe, options["residuals"] = gradhomog.pipeline("ntk"), residuals if first else None
    elif first:
        changed = {
            "level": "features", "per": "layer", "scaler": torch.amp.GradScaler("cpu"),
            "examples": Ranks("batch", examples=12),
        }  # fmt: skip
        name = "group" if what == "examples" else what
        options |= {name: changed[what]} if what in changed else {}
    return error_of(lambda: gradhomog.backward(losses, pipe, **options), model)


def diverges_after_one_step(what: str, compare_every: int | None) -> tuple[int, str]:
    """Return the steps taken and the error of four steps, after the first of which a value of rank 1 changes."""
    (x, y), model, pipe = data(), Model(), gradhomog.pipeline("gradnorm")
    group, per = Ranks("batch", compare_every=compare_every), "layer" if what == "state of a group" else "model"
    state = pipe.group("2").members[0].homogenizer if what == "state of a group" else pipe.members[0].homogenizer
    changed = {"parameter": model.encoder[2].weight, "head": model.heads[1].weight}

    def step() -> None:
        gradhomog.backward(losses_of(model(x), y), pipe, parameters=model.encoder, per=per, group=group)  # type: ignore[arg-type]

    for taken in range(4):
        if (text := error_of(step, model)) != "no error":
            return taken, text
        model.zero_grad()
        if taken == 0 and dist.get_rank() == 1:
            with torch.no_grad():
                if what in changed:
                    changed[what].view(-1)[1:] *= 1.5  # not the first element
                else:
                    saved: Any = state.state_dict()
                    saved["log_weights"]["0"] += 0.1
                    state.load_state_dict(saved)
    return 4, text


def reduce_scatter(backend: str) -> tuple[bool, list[float]]:
    """Return whether a reduce-scatter is a sum of parts that were exchanged, and this rank's part of [0, 1] + rank."""
    collectives = GroupCommunicator(Ranks("batch", dist.new_group(backend=backend)))
    pending = collectives.start_reduce_scatter(torch.arange(2.0) + collectives.rank)
    return pending.summed, pending.wait().tolist()


def head_in_another_order() -> str:
    """Return the error of a step in which rank 1 computes the same loss from the parts of a head in another order."""
    (x, y), model = data(), Model()
    z = model.encoder(x)
    parts = [head(z)[:, 0] for head in model.heads[:2]]
    output = parts[0] + parts[1] if dist.get_rank() == 0 else parts[1] + parts[0]
    losses = [(output - y[:, 0]).square().mean(), (model.heads[2](z)[:, 0] - y[:, 1]).square().mean()]
    pipe = gradhomog.pipeline("pcgrad")
    pipe.steps = 1  # shared parameters are compared in the first step, heads in every step
    return error_of(lambda: gradhomog.backward(losses, pipe, parameters=model.encoder, group=Ranks("batch")), model)


def heads_of_other_inputs(call: str, several: bool) -> list[Tensor]:
    """Return the gradients of heads for features `[batch, 1, 3]`, of which rank 1 repeats each: `[batch, 2, 3]`."""
    (x, _), model, pipe = data(), Model(), gradhomog.pipeline("pcgrad")
    z = model.encoder(x[part_of([6, 6])] if several else x)
    z = z[:, None].expand(-1, 1 + dist.get_rank(), -1)  # the order of weight and bias in the graph differs on rank 1
    losses, group = [head(z).square().mean() for head in model.heads], Ranks("batch") if several else None
    take_step(call, [losses], pipe, parameters=model.encoder, group=group)
    return model.gradients()


def absent_with_a_method_that_chooses(call: str) -> str:
    """Return the error of a step with `tracked`, in which a task is absent on rank 1."""
    (x, y), model, pipe = data(), Model().encoder, gradhomog.pipeline("tracked")
    losses: list[Tensor | None] = [(output - y[:, 0]).square().mean() for output in model(x).unbind(1)]
    if dist.get_rank() == 1:
        losses[0] = None
    options: Any = {"parameters": model, "group": Ranks("batch", gather=True)}
    return error_of(lambda: take_step(call, [losses], pipe, **options), model)


def gradients_of_a_pair(model: Model, extra: Tensor) -> list[Tensor | None]:
    return [parameter.grad for parameter in (*model.parameters(), extra)]


def no_labels_on_one_rank(text: str, several: bool) -> list[Tensor | None]:
    """Return the gradients of a step in which a task's mean over labels is NaN on rank 0, which has none.

    No loss depends on the last parameter.
    """
    (x, y), model, extra = data(), Model(), nn.Parameter(torch.ones(2, dtype=torch.float64))
    labelled = torch.ones_like(y)
    labelled[:6, 1] = 0
    part = part_of([6, 6]) if several else slice(None)
    x, y, labelled = x[part], y[part], labelled[part]
    pipe = gradhomog.pipeline(text)
    views = gradhomog.task_features(model.encoder(x), pipe, tasks=3)
    losses = [
        ((head(view)[:, 0] - target).square() * mask).sum() / mask.sum()
        for head, view, target, mask in zip(model.heads, views, y.unbind(1), labelled.unbind(1), strict=True)
    ]
    group = Ranks("batch", examples=labelled.sum(0).tolist()) if several else None
    shared = {**dict(model.encoder.named_parameters()), "extra": extra}
    features = views if pipe.requirements.transforming else None
    gradhomog.backward(losses, pipe, parameters=shared, features=features, group=group)
    return gradients_of_a_pair(model, extra)


def points_of_a_differential_equation(call: str, sizes: list[int]) -> list[Tensor]:
    """Return the gradients of a network for u' = u, u(0) = 1 at points that require grad, with a learned factor."""
    model, pipe = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1)).double(), gradhomog.pipeline("pcgrad")
    factor = nn.Parameter(torch.ones((), dtype=torch.float64))  # a head: only the first loss depends on it
    for index, parameter in enumerate(model.parameters()):
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(index))
    points = torch.linspace(0, 1, 12, dtype=torch.float64)[part_of(sizes), None].requires_grad_()
    u = model(points)
    (slope,) = torch.autograd.grad(u.sum(), points, create_graph=True)
    start = torch.zeros(1, 1, dtype=torch.float64).requires_grad_()
    losses = [(slope - factor * u).square().mean(), (model(start) - 1).square().mean(), u.square().mean()]
    options: Any = {"parameters": model, "group": Ranks("batch", examples=len(points)) if len(sizes) > 1 else None}
    if call == "tasks":  # the losses of each rank are other tasks
        losses, options = losses[1:], {"parameters": model, "group": Ranks("tasks")}
    take_step(call, [losses], pipe, **options)
    return [parameter.grad for parameter in (*model.parameters(), factor) if parameter.grad is not None]


def no_examples_on_rank_1(text: str, several: bool) -> list[Tensor | None]:
    """Return the gradients of a step without examples on rank 1; no loss depends on the last parameter."""
    (x, y), model, extra = data(), Model(), nn.Parameter(torch.ones(2, dtype=torch.float64))
    part = [slice(None), slice(0, 3)][dist.get_rank()]  # the 3 examples on rank 1 do not count
    group = Ranks("batch", examples=[12, 0][dist.get_rank()]) if several else None
    shared = {**dict(model.encoder.named_parameters()), "extra": extra}
    losses = losses_of(model(x[part]), y[part])
    gradhomog.backward(losses, gradhomog.pipeline(text), parameters=shared, group=group)
    return gradients_of_a_pair(model, extra)


def infinite_gradient_on_rank_1(text: str) -> str:
    """Return the error of a step with an infinite gradient on rank 1."""
    (x, y), model, pipe = data(), Model(), gradhomog.pipeline(text)
    losses = losses_of(model(x), y)
    if dist.get_rank() == 1:
        model.encoder[0].weight.register_hook(lambda gradient: torch.inf * gradient)
    return error_of(lambda: gradhomog.backward(losses, pipe, parameters=model.encoder, group=Ranks()), model)


def dropped_on_rank_1() -> list[Tensor]:
    """Return the gradients of heads with `local=True`, whose second task is dropped on rank 1."""
    (x, y), model, pipe = data(), Model(), gradhomog.pipeline("pcgrad", nonfinite="drop")
    losses = losses_of(model(x), y)
    if dist.get_rank() == 1:
        losses[1] = torch.nan * losses[1]
    gradhomog.backward(losses, pipe, parameters=model.encoder, group=Ranks(local=True))
    return [parameter.grad for parameter in model.heads.parameters() if parameter.grad is not None]


def head_gradients() -> list[Tensor]:
    """Return the gradients of the heads in one process."""
    (x, y), model = data(), Model()
    gradhomog.backward(losses_of(model(x), y), gradhomog.pipeline("pcgrad"), parameters=model.encoder)
    return [parameter.grad for parameter in model.heads.parameters() if parameter.grad is not None]


def learner_error(case: str) -> tuple[str, int]:
    """Return the error of a meta-step that cannot be taken, and the number of steps of the pipeline."""
    learner, first = gradhomog.learner("maml", *checks.networks(), homogenizers="uw"), dist.get_rank() == 0
    outer, tasks, group = torch.optim.SGD(learner.parameters(), lr=0.1), list(checks.tasks(2)), Ranks("tasks")
    if case == "over the batch":
        group = Ranks("batch")
    elif case == "local":
        group = Ranks("tasks", local=True)
    if case in ("another seed", "local") and not first:
        nn.init.ones_(learner.parameters()[0])
    elif case == "no tasks" and not first:
        tasks = []
    elif case == "fewer queries" and not first:
        tasks = [replace(task, query_x=task.query_x[:6], query_y=task.query_y[:6]) for task in tasks]
    return error_of(lambda: learner.step(tasks, outer, group=group), learner), learner.homogenizers.steps
