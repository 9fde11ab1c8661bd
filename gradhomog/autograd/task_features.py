"""Transform shared features for each task by the `transform` stages of a pipeline."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence

from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.step import task_keys


class TaskFeatures:
    """Shared features `[batch, features]` and their transformed views, one per task.

    `views[i]` is the input of the head of task i. Pass the object to `gradhomog.backward(..., features=views)`.
    """

    def __init__(
        self, features: Tensor, stage_features: Sequence[Sequence[Tensor]], domains: tuple[str, ...] = ()
    ) -> None:
        self.features, self.stage_features, self.domains = features, stage_features, domains

    def __len__(self) -> int:
        return len(self.stage_features)

    def __getitem__(self, task: int) -> Tensor:
        return self.stage_features[operator.index(task)][-1][0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[task] for task in range(len(self)))


def task_features(features: Tensor, pipe: Pipeline, tasks: int, domains: Sequence[str] | None = None) -> TaskFeatures:
    """Return each task's view of shared features, z_i = T_i z, by the `transform` stages of a pipeline.

    The views are the inputs of the heads. Only pipelines that transform features (`rotograd`, `rotate`, `rotogbml`)
    require them; for others the views are equal to the features.

    Args:
        features: z, `[batch, features]`, with its graph.
        pipe: the pipeline whose `transform` stages are applied, in order.
        tasks: N.
        domains: one name per task, as passed to `backward`, for state by domain.

    Returns:
        N tensors `[batch, features]`, differentiable in the features.

    Raises:
        OptionError: the features have another shape, or the number of domains differs from the number of tasks.

    >>> import torch, gradhomog
    >>> encoder, heads = torch.nn.Linear(3, 4), [torch.nn.Linear(4, 1) for _ in range(2)]
    >>> pipe = gradhomog.pipeline("rotograd")
    >>> views = gradhomog.task_features(encoder(torch.ones(5, 3)), pipe, tasks=2)
    >>> losses = [head(view).square().mean() for head, view in zip(heads, views)]
    >>> _ = gradhomog.backward(losses, pipe, parameters=encoder, features=views)
    >>> encoder.weight.grad.shape
    torch.Size([4, 3])
    """
    if not isinstance(pipe, Pipeline):
        raise OptionError(f"`pipe` must be a pipeline; got {pipe!r}. Create it by gradhomog.pipeline('rotograd').")
    if not isinstance(features, Tensor):
        raise OptionError(f"`features` must be a tensor [batch, features]; got {type(features).__name__}.")
    if features.dim() != 2:
        raise OptionError(
            f"`features` must have shape [batch, features]; got {tuple(features.shape)}. Flatten feature maps first."
        )
    names = tuple(domains or ())
    stage_features = [pipe.transform(features[None], [key]) for key in task_keys(range(tasks), names)]
    return TaskFeatures(features, stage_features, names)
