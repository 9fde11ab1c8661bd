"""Row of one task with `torch.autograd.grad`: one backward pass, which frees the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from gradhomog import Task, TaskKey, TaskRow
from gradhomog_adapters._network.functional import Parameters
from gradhomog_adapters._rows.gradients import autograd_gradient, autograd_hessian, zeros_for_missing
from gradhomog_adapters._rows.task_sets import Path, RowLearner


def autograd_row(learner: RowLearner, task: Task, key: TaskKey) -> TaskRow:
    """Row of one task. `begin` of homogenizers is called once for the support set and once for the query set."""
    pipe = learner.homogenizers
    begin = partial(pipe.begin, key)
    support = learner.support(task.support_x, task.support_y, begin, autograd_gradient, autograd_hessian)

    def query_row(path: Path, at: Parameters) -> TaskRow:
        at = {name: t if t.requires_grad else t.detach().requires_grad_() for name, t in at.items()}
        points = path(at, support)
        statistics = [learner.support_statistics(point, support) for point in points]
        begin("query")
        losses: list[Tensor] = []
        taps: list[Tensor] = []  # features at each tap, of all passes
        for point, record in zip(points, statistics, strict=True):
            query = learner.query(point, support, task.query_x, task.query_y, record)
            # The features of a frozen encoder are leaves: derivatives end there.
            features = query.features if query.features.requires_grad else query.features.detach().requires_grad_()
            query_taps = pipe.transform(features[None], [key])
            query.features = query_taps[-1][0]
            loss, outputs = learner.query_loss(point, query)
            losses.append(loss)
            taps += query_taps
        loss = losses[0] if len(losses) == 1 else learner.total(losses)
        # Taps are the features before and after each `transform` stage; a slice of one has no separate gradient.
        gradients, by_taps = differentiate(loss, at, taps)
        tap_grads = zeros_for_missing(by_taps, taps)
        # A homogenizer changes the query features of all passes alike, so their gradients are summed over passes.
        feature_grads = [sum(tap_grads[n :: len(query_taps)][1:], tap_grads[n])[0] for n in range(len(query_taps))]
        return TaskRow(
            loss.detach(), gradients, outputs.detach(), [tap[0].detach() for tap in query_taps], feature_grads
        )

    begin("support")
    return learner.row(learner.live_parameters, support, query_row)


def differentiate(
    loss: Tensor, parameters: Mapping[str, Tensor], taps: Sequence[Tensor] = (), retain_graph: bool = False
) -> tuple[dict[str, Tensor | None], Sequence[Tensor | None]]:
    """Gradients of a task's loss w.r.t. named parameters and features; None for tensors it does not depend on."""
    found = torch.autograd.grad(loss, [*parameters.values(), *taps], retain_graph=retain_graph, allow_unused=True)
    return dict(zip(parameters, found, strict=False)), found[len(parameters) :]
