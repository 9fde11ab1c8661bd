"""RelationNet with adversarial task augmentation: it learns from tasks that increase its loss."""

from __future__ import annotations

from typing import Annotated, Any, Unpack

from annotated_types import Interval
from torch import nn

from gradhomog import LearnerSpec, hookimpl
from gradhomog_adapters._adversarial_tasks import AdversarialTasks
from gradhomog_adapters._option_types import CountOrZero, NonNegative
from gradhomog_adapters.relationnet import RelationNet, RelationNetOptions


class RelationNetATA(AdversarialTasks, RelationNet):
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
        execution, engine, compile, autocast, norm, recompute: see `Execution`. `autocast` applies to the ascent too;
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
        self.set_augmentation(ascent_steps, ascent_lr, probability, seed)


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=RelationNetATA,
        summary="RelationNet that learns from tasks changed to increase its loss",
        reference="Wang and Deng 2021, arXiv 2104.14385",
    )
