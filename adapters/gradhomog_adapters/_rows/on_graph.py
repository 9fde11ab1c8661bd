"""The row of one task by `torch.autograd.grad`: all of it comes from one backward pass, which frees the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from gradhomog import Task, TaskKey, TaskRow
from gradhomog_adapters._network.functional import Parameters
from gradhomog_adapters._rows.gradients import gradient_on_graph, hessian_on_graph, zeros_for_missing
from gradhomog_adapters._rows.sets import Path, Rows


def row_on_graph(learner: Rows, task: Task, key: TaskKey) -> TaskRow:
    """The row of one task. Homogenizers are informed of the support set and the query set, once each."""
    pipe = learner.homogenizers
    begin = partial(pipe.begin, key)
    support = learner.support(task.support_x, task.support_y, begin, gradient_on_graph, hessian_on_graph)

    def query_row(path: Path, at: Parameters) -> TaskRow:
        at = {name: t if t.requires_grad else t.detach().requires_grad_() for name, t in at.items()}
        points = path(at, support)
        statistics = [learner.support_statistics(point, support) for point in points]
        begin("query")
        losses: list[Tensor] = []
        taps: list[Tensor] = []  # of all passes
        for point, known in zip(points, statistics, strict=True):
            query = learner.query(point, support, task.query_x, task.query_y, known)
            # Of a frozen encoder the features are where the derivatives end.
            features = query.features if query.features.requires_grad else query.features.detach().requires_grad_()
            shown = pipe.transform(features[None], [key])
            query.features = shown[-1][0]
            loss, outputs = learner.query_loss(point, query)
            losses.append(loss)
            taps += shown
        loss = losses[0] if len(losses) == 1 else learner.total(losses)
        # Taps are the features before and after each `transform` stage; a slice of one has no gradient of its own.
        gradients, by_taps = differentiate(loss, at, taps)
        each = zeros_for_missing(by_taps, taps)
        # A homogenizer that moves query features moves them in every pass alike: gradients are sums over passes.
        feature_grads = [sum(each[n :: len(shown)][1:], each[n])[0] for n in range(len(shown))]
        return TaskRow(loss.detach(), gradients, outputs.detach(), [tap[0].detach() for tap in shown], feature_grads)

    begin("support")
    return learner.row(learner.live_parameters, support, query_row)


def differentiate(
    loss: Tensor, parameters: Mapping[str, Tensor], taps: Sequence[Tensor] = (), retain_graph: bool = False
) -> tuple[dict[str, Tensor | None], Sequence[Tensor | None]]:
    """Gradients of a task's loss by named parameters and by features; None where it does not depend on one."""
    found = torch.autograd.grad(loss, [*parameters.values(), *taps], retain_graph=retain_graph, allow_unused=True)
    return dict(zip(parameters, found, strict=False)), found[len(parameters) :]
