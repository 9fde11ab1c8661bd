"""RelationNet with adversarial task augmentation: it learns from tasks that increase its loss."""

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Unpack

import torch
from annotated_types import Interval
from torch import Tensor, nn
from torch.nn.functional import conv2d

from gradhomog import LearnerSpec, Task, TaskBatch, TaskRows, hookimpl, to_device
from gradhomog_adapters._gradients import detach_all
from gradhomog_adapters._network import StepCounter
from gradhomog_adapters._option_types import CountOrZero, NonNegative
from gradhomog_adapters.few_shot import ignore
from gradhomog_adapters.relationnet import RelationNet, RelationNetOptions

SIZES = (1, 3, 5, 7, 11, 15)  # pixels, in the code of Wang and Deng 2021


class RandomConvolution(StepCounter):
    """Draws for each task, with a probability, one kernel for all its images.

    The kernel maps the C channels to C channels. Its side k is uniform in `SIZES`, and its entries are from
    N(0, 1 / (C k²)), Xavier initialization. Images are padded by zeros, so their size is unchanged.

    Args:
        probability: in [0, 1].
        seed: seed of the kernels.
    """

    def __init__(self, probability: float, seed: int) -> None:
        super().__init__()
        self.probability, self.seed = probability, seed

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


class RelationNetATA(RelationNet):
    """RelationNet whose rows are those of tasks with an increased query loss, found by gradient ascent on the images.

    x⁰ = K * x with a random kernel K with probability P, otherwise x, for all images x of a task
    x^{t+1} = x^t + η ∇_x L_Q(θ; x^t),  t = 0, …, T − 1, for all support and query images jointly
    row_i = ∇_θ L_Q(θ; x^T), where x^T is a constant

    Args:
        encoder, head, homogenizers: see `Learner`.
        ascent_steps: T ≥ 0.
        ascent_lr: η ≥ 0. The authors use 80 for graph networks and 20 for label propagation; 80 is the default of their
            code. Here, with `conv4` on 5-way 1-shot glyphs of 28 px, five steps of 80 change queries by 3 % of their
            standard deviation and increase the loss by 4 %. Gradients are smaller for more queries and larger images.
        probability: P in [0, 1]. The kernel maps the C channels to C channels; its side is 1, 3, 5, 7, 11 or 15 pixels
            and its entries are from N(0, 1/(C · side²)). Inputs other than images are not convolved.
        seed: seed of the kernels.
        loss, maps, input_shape, hidden, objective: see `RelationNet`.
        engine, compile, autocast, norm, recompute: see `Execution`. `autocast` applies to the ascent too;
            its result then differs much from that in float32.

    A kernel is a function of the seed, the number of the meta-step, the task's domain, and the task's place among those
    of its domain in the batch. The number of meta-steps is state. Reported losses and accuracies are those of the
    augmented tasks. Homogenizers act on their rows but not in the ascent, which runs in evaluation mode (no dropout).
    Meta-test is that of RelationNet. Rows are not derivatives of the reported losses, because x^T is a constant. Cost:
    T + 1 times that of RelationNet; ascent steps are computed one task after the other.

    Source: Wang and Deng 2021, arXiv 2104.14385, algorithm 1, and the authors' code.

    Deviations: (1) those of `RelationNet`. (2) The code has the probability 1 − P of a convolution. (3) In the ascent,
    batch normalization has the statistics selected by `norm`; the code uses running statistics. (4) The authors start
    from an encoder pre-trained as `baseline`; this learner starts from the given network. (5) Augmented images are not
    clipped to a range, as in the code.

    >>> import torch
    >>> from gradhomog import TaskBatch
    >>> _ = torch.manual_seed(0)
    >>> encoder = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())
    >>> learner = RelationNetATA(encoder, torch.nn.Linear(144, 2), ascent_steps=2)
    >>> x, y = torch.randn(3, 4, 1, 8, 8), torch.arange(2).repeat(3, 2)
    >>> report = learner.step(TaskBatch(x, y, x, y), torch.optim.Adam(learner.parameters(), lr=1e-3))
    >>> tuple(report.losses.shape)
    (3,)
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        ascent_steps: CountOrZero = 5,
        ascent_lr: NonNegative = 80.0,
        probability: Annotated[float, Interval(ge=0, le=1)] = 0.5,
        seed: int = 0,
        **options: Unpack[RelationNetOptions],
    ) -> None:
        super().__init__(encoder, head, homogenizers, **options)
        self.ascent_steps, self.ascent_lr = ascent_steps, ascent_lr
        self.convolution = RandomConvolution(probability, seed)
        self.register_module("convolution", self.convolution)

    def rows(self, batch: TaskBatch | Sequence[Task]) -> TaskRows:
        batch = batch if isinstance(batch, TaskBatch) else TaskBatch.stack(batch)
        return super().rows(self.augment(batch))

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
        support = self.support(task.support_x, task.support_y, ignore)
        losses = []
        for point in self.evaluation_points(detach_all(self.live_parameters), support):
            statistics = self.support_statistics(point, support)
            losses.append(self.query_loss(point, self.query(point, support, task.query_x, task.query_y, statistics))[0])
        return self.combine_losses(losses)


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=RelationNetATA,
        summary="RelationNet that learns from tasks changed to increase its loss",
        reference="Wang and Deng 2021, arXiv 2104.14385",
    )
