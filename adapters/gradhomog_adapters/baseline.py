"""Baseline ("Linear"): one linear classifier of all training classes, and a new one for each task at meta-test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from torch import nn

from gradhomog import LearnerSpec, hookimpl
from gradhomog_adapters._base_classes import BaseClasses
from gradhomog_adapters._classifiers import linear
from gradhomog_adapters.execution import Execution, ExecutionOptions


class Baseline(BaseClasses):
    """Trains an encoder by plain classification of all training classes; at meta-test fits a linear layer to its
    features.

    row_i = ∇ mean over support and query images of task i of −log softmax(A f(x) + b)_class(x), by f, A and b
    meta-test: a new (A, b) of `ways` classes by stochastic gradient descent on f(support set), f fixed

    Args:
        encoder, head, homogenizers, loss: see `Learner`. Of the head only the number of outputs counts, the classes of
            a task; it is not trained, its rows are zero.
        classes: ≥ 1, how many classes the tasks are drawn from: A has so many rows. Each task then says by its
            `classes` which of them its own 0, 1, … are, as an `EpisodeStream` does. By default the labels of tasks are
            taken as they are: they must then mean the same in all tasks.
        input_shape: of one input; by default the head's first linear layer tells the number of features.
        test_lr: > 0; `test_epochs` ≥ 0; `test_batch` ≥ 1, images of a batch: of the descent at meta-test, with momentum
            and dampening 0.9 and weight decay 1e-3.
        seed: ≥ 0, of the new layer and the order of batches at meta-test, the same for each task.
        execution, engine, compile, autocast, norm, recompute: see `Execution`. Support set and queries are separate
            batches of batch normalization.

    The classifier is the module `learner.classifier`. Outputs while training are those of the task's own classes.
    Rows are exact. Regression is refused (DataError). A `transform` acts on the features of the queries only. A class
    without a support example is fitted as one that never occurs. Nothing of the learner changes at meta-test. Cost per
    task: one forward and backward pass; at meta-test `test_epochs` · support / `test_batch` steps on the new layer.

    Source: Chen et al. 2019, arXiv 1904.04232, section 3.2 and their code, whose constants these are.

    Deviations: (1) batches are tasks, so that homogenizers see rows; theirs are 16 images of any classes; (2) running
    statistics of batch normalization are not kept, see `norm`; (3) classes are those of the training split only, where
    their code makes 200 outputs whatever there are.

    >>> import torch
    >>> from gradhomog import Task, TaskBatch
    >>> learner = Baseline(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2), classes=6)
    >>> x, y = torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
    >>> batch = TaskBatch.stack([Task(x, y, x, y, classes=torch.tensor(ids)) for ids in ([5, 2], [0, 1])])
    >>> learner.rows(batch).jacobian["learner.classifier.weight"].shape
    torch.Size([2, 6, 4])
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        classes: int | None = None,
        input_shape: Sequence[int] | None = None,
        test_lr: float = 0.01,
        test_epochs: int = 100,
        test_batch: int = 4,
        seed: int = 0,
        loss: Any = None,
        execution: Execution | None = None,
        **keywords: Unpack[ExecutionOptions],
    ) -> None:
        super().__init__(
            encoder, head, homogenizers, linear, classes, input_shape, test_lr, test_epochs, test_batch,
            seed, loss=loss, execution=execution, **keywords,
        )  # fmt: skip


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=Baseline,
        summary="classifies all training classes; at meta-test fits a new linear layer to each task",
        reference="Chen et al. 2019, arXiv 1904.04232",
        traits={"exact_rows"},
    )
