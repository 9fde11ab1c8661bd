"""Adversarial task augmentation: random convolution of a task's images, then gradient ascent of its query loss."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from gradhomog import Task, TaskBatch, TaskRows, to_device
from gradhomog_adapters._gradients import autograd_gradient, autograd_hessian, detach_all
from gradhomog_adapters._network import SeededByStep
from gradhomog_adapters.few_shot import FewShotLearner, ignore

SIZES = (1, 3, 5, 7, 11, 15)  # pixels, in the code of Wang and Deng 2021


class RandomConvolution(SeededByStep):
    """Draws for each task, with a probability, one kernel for all its images.

    The kernel maps the C channels to C channels. Its side k is uniform in `SIZES`, and its entries are from
    N(0, 1 / (C k²)), Xavier initialization. Images are padded by zeros, so their size is unchanged.

    Args:
        probability: in [0, 1].
        seed: seed of the kernels.
    """

    def __init__(self, probability: float, seed: int) -> None:
        super().__init__(seed)
        self.probability = probability

    def convolve(self, task: Task, place: int) -> Task:
        """Return the task with convolved images, or unchanged; inputs other than `[n, C, h, w]` are unchanged.

        `place` is the number of tasks of the same domain before it in the batch.
        """
        if task.support_x.dim() != 4:
            return task
        # The domain instead of the slot: the order of tasks of different domains has no effect.
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{self.step}/{place}/{task.domain}".encode()))
        if float(torch.rand((), generator=generator, dtype=torch.float64)) >= self.probability:
            return task
        channels = task.support_x.shape[1]
        size = SIZES[int(torch.randint(len(SIZES), (), generator=generator))]
        entries = torch.randn(channels, channels, size, size, generator=generator, dtype=torch.float64)
        kernel = to_device(entries / (size * math.sqrt(channels)), task.support_x.device, task.support_x.dtype)
        support_x, query_x = (conv2d(x, kernel, padding=size // 2) for x in (task.support_x, task.query_x))
        return replace(task, support_x=support_x, query_x=query_x)


class AdversarialTasks(FewShotLearner):
    """Mixin for learners: rows are those of augmented tasks. Use it as first base class, as in `RelationNetATA`.

    The constructor of the subclass calls `set_augmentation` last. The row of the learner must be defined by
    `evaluation_points` and `query_loss`, as in MAML and in metric learners. Meta-test is that of the learner.
    """

    def set_augmentation(self, ascent_steps: int, ascent_lr: float, probability: float, seed: int) -> None:
        """Store the options of the augmentation."""
        self.ascent_steps, self.ascent_lr = ascent_steps, ascent_lr
        self.convolution = RandomConvolution(probability, seed)
        self.register_module("convolution", self.convolution)

    def rows(self, batch: TaskBatch | Sequence[Task]) -> TaskRows:
        batch = batch if isinstance(batch, TaskBatch) else TaskBatch.stack(batch)
        return super().rows(self.augment(batch))

    def on_step_end(self) -> None:
        super().on_step_end()
        self.convolution.on_step_end()

    def augment(self, batch: TaskBatch) -> TaskBatch:
        """Return the augmented tasks of the next meta-step, without a graph."""
        places: Counter[str] = Counter()
        augmented = []
        with self.mode(training=False), torch.enable_grad():
            for task in batch:
                augmented.append(self._ascend(self.convolution.convolve(task, places[task.domain])))
                places[task.domain] += 1
        return replace(
            batch,
            support_x=torch.stack([task.support_x for task in augmented]),
            query_x=torch.stack([task.query_x for task in augmented]),
        )

    def _ascend(self, task: Task) -> Task:
        """Ascend the query loss by steps on all inputs of the support and query set."""
        for _ in range(self.ascent_steps):
            inputs = [x.detach().requires_grad_() for x in (task.support_x, task.query_x)]
            loss = self._query_loss_of(replace(task, support_x=inputs[0], query_x=inputs[1]))
            gradients = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
            support_x, query_x = (
                (x + self.ascent_lr * gradient).detach() for x, gradient in zip(inputs, gradients, strict=True)
            )
            task = replace(task, support_x=support_x, query_x=query_x)
        return task

    def _query_loss_of(self, task: Task) -> Tensor:
        """The query loss of a task without homogenizers, differentiable w.r.t. its inputs."""
        support = self.support(task.support_x, task.support_y, ignore, autograd_gradient, autograd_hessian)
        losses = []
        for point in self.evaluation_points(detach_all(self.live_parameters), support):
            statistics = self.support_statistics(point, support)
            losses.append(self.query_loss(point, self.query(point, support, task.query_x, task.query_y, statistics))[0])
        return self.combine_losses(losses)
