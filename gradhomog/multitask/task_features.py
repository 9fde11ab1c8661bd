"""Features that each task sees in its own way: what the `transform` stages of a pipeline make of them."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence

from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.evidence import task_keys
from gradhomog.pipelines import Pipeline


class TaskFeatures:
    """Shared features `[batch, features]` and, for each task, what its head is to be given instead of them.

    A sequence: `views[i]` is for task i. Hand it to `gradhomog.backward(..., features=views)`.
    """

    def __init__(self, features: Tensor, taps: Sequence[Sequence[Tensor]], domains: tuple[str, ...] = ()) -> None:
        self.features, self.taps, self.domains = features, taps, domains

    def __len__(self) -> int:
        return len(self.taps)

    def __getitem__(self, task: int) -> Tensor:
        return self.taps[operator.index(task)][-1][0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[task] for task in range(len(self)))


def task_features(features: Tensor, pipe: Pipeline, tasks: int, domains: Sequence[str] | None = None) -> TaskFeatures:
    """Each task's own view of shared features, z_i = T_i z: through a pipeline's `transform` stages, for the heads.

    Only pipelines that transform (`rotograd`, `rotate`, `rotogbml`) need it; for others the views are the features
    themselves.

    Args:
        features: z, `[batch, features]`, with its graph.
        pipe: whose stages transform, in order.
        tasks: N.
        domains: one name per task, as they are handed to `backward`, for state held by domain.

    Returns:
        N tensors `[batch, features]`, differentiable in the features.

    Raises:
        OptionError: features of another shape, or not as many domains as tasks.

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
        raise OptionError(f"`pipe` must be a pipeline, gradhomog.pipeline('rotograd'); got {pipe!r}.")
    if not isinstance(features, Tensor):
        raise OptionError(f"`features` must be a tensor [batch, features]; got {type(features).__name__}.")
    if features.dim() != 2:
        raise OptionError(
            f"`features` must have shape [batch, features]; got {tuple(features.shape)}. Flatten maps first."
        )
    if domains is not None and len(domains) != tasks:
        raise OptionError(f"`domains` must name one domain for each of the {tasks} tasks; got {list(domains)}.")
    keys = task_keys(tasks, tuple(domains or ()))
    return TaskFeatures(features, [pipe.transform(features[None], [key]) for key in keys], tuple(domains or ()))
