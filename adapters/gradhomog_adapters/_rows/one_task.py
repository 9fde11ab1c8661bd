"""Row of one task with `torch.autograd.grad`: one backward pass, which frees the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from gradhomog import Task, TaskKey, TaskRow
from gradhomog_adapters._network.functional import Parameters
from gradhomog_adapters._rows.gradients import autograd_gradient, autograd_hessian, zeros_for_missing
from gradhomog_adapters._rows.task_sets import EvaluationPoints, RowLearner


def autograd_row(learner: RowLearner, task: Task, key: TaskKey) -> TaskRow:
    """Row of one task. `begin` of homogenizers is called once for the support set and once for the query set."""
    pipe = learner.homogenizers
    begin = partial(pipe.begin, key)
    support = learner.support(task.support_x, task.support_y, begin, autograd_gradient, autograd_hessian)

    def query_row(evaluation_points: EvaluationPoints, at: Parameters) -> TaskRow:
        at = {name: t if t.requires_grad else t.detach().requires_grad_() for name, t in at.items()}
        points = evaluation_points(at, support)
        statistics = [learner.support_statistics(point, support) for point in points]
        begin("query")
        losses: list[Tensor] = []
        features_of_passes: list[Tensor] = []  # features before and after each `transform` stage, of all passes
        for point, record in zip(points, statistics, strict=True):
            query = learner.query(point, support, task.query_x, task.query_y, record)
            # The features of a frozen encoder are leaves: derivatives end there.
            features = query.features if query.features.requires_grad else query.features.detach().requires_grad_()
            stage_features = pipe.transform(features[None], [key])
            query.features = stage_features[-1][0]
            loss, outputs = learner.query_loss(point, query)
            losses.append(loss)
            features_of_passes += stage_features
        loss = losses[0] if len(losses) == 1 else learner.combine_losses(losses)
        # Differentiate w.r.t. the tensors that `transform` returned: a slice of one has no separate gradient.
        gradients, by_features = differentiate(loss, at, features_of_passes)
        grads = zeros_for_missing(by_features, features_of_passes)
        # A homogenizer changes the query features of all passes alike, so their gradients are summed over passes.
        stages = len(stage_features)
        feature_grads = [sum(grads[n::stages][1:], grads[n])[0] for n in range(stages)]
        return TaskRow(
            loss.detach(), gradients, outputs.detach(), [x[0].detach() for x in stage_features], feature_grads
        )

    begin("support")
    return learner.row(learner.live_parameters, support, query_row)


def differentiate(
    loss: Tensor, parameters: Mapping[str, Tensor], features: Sequence[Tensor] = (), retain_graph: bool = False
) -> tuple[dict[str, Tensor | None], Sequence[Tensor | None]]:
    """Gradients of a task's loss w.r.t. named parameters and features; None for tensors it does not depend on."""
    found = torch.autograd.grad(loss, [*parameters.values(), *features], retain_graph=retain_graph, allow_unused=True)
    return dict(zip(parameters, found, strict=False)), found[len(parameters) :]
