"""Baseline ("Linear"): one linear classifier for all training classes, and a new one for each task at meta-test."""

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from gradhomog import LearnerSpec, hookimpl, to_device
from gradhomog_adapters._classifiers import ClassifierLearner
from gradhomog_adapters._gradients import detach_all
from gradhomog_adapters._metric import MetricLearner, check_classification
from gradhomog_adapters._network import Parameters
from gradhomog_adapters._option_types import Count, CountOrZero, Positive
from gradhomog_adapters.few_shot import LearnerOptions, Support

# SGD in the code of Chen et al. 2019.
MOMENTUM, DAMPENING, WEIGHT_DECAY = 0.9, 0.9, 1e-3


class BaselineOptions(LearnerOptions, total=False):
    """Keywords of `Baseline`."""

    classes: Count | None
    input_shape: Sequence[int] | None
    test_lr: Positive
    test_epochs: CountOrZero
    test_batch: Count
    seed: CountOrZero


class Baseline(ClassifierLearner, MetricLearner):
    """Trains an encoder by classification of all training classes; at meta-test fits a linear layer to its features.

    row_i = ∇ mean over support and query images of task i of −log softmax(A f(x) + b)_class(x), w.r.t. f, A and b
    meta-test: a new (A, b) of `ways` classes by stochastic gradient descent on f(support set), f fixed

    Args:
        encoder, head, homogenizers, loss: see `Learner`. Only the number of outputs of the head is used, the number of
            classes of a task; the head is not trained and its rows are zero.
        classes: ≥ 1, number of classes that tasks are drawn from, and of rows of A. `classes` of each task must then
            contain the indices of its classes 0, 1, … among them, as set by an `EpisodeStream`. Default: the labels of
            tasks are used directly and must have the same meaning in all tasks.
        input_shape: shape of one input; default: the number of features is that of the head's first linear layer.
        test_lr: > 0; `test_epochs` ≥ 0; `test_batch` ≥ 1, images per batch: SGD at meta-test, with momentum and
            dampening 0.9 and weight decay 1e-3.
        seed: ≥ 0, for the new layer and the order of batches at meta-test, the same for each task.
        engine, compile, autocast, norm, recompute: see `Execution`. Support set and queries are separate
            batches for batch normalization.

    The classifier is the module `learner.classifier`. Outputs in training are those of the task's own classes. Rows are
    exact. Regression tasks cause a DataError. A `transform` acts on the query features only. A class without a support
    example is fitted as a class that never occurs. The learner does not change at meta-test. Cost per task: one forward
    and backward pass; at meta-test `test_epochs` · support / `test_batch` steps on the new layer.

    Source: Chen et al. 2019, arXiv 1904.04232, section 3.2, and their code, which has the same constants.

    Deviations: (1) batches are tasks, because homogenizers need rows; theirs are 16 images of any classes; (2) running
    statistics of batch normalization are not kept, see `norm`; (3) the classifier has the classes of the training split
    only; theirs always has 200 outputs.

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
        classes: Count | None = None,
        input_shape: Sequence[int] | None = None,
        test_lr: Positive = 0.01,
        test_epochs: CountOrZero = 100,
        test_batch: Count = 4,
        seed: CountOrZero = 0,
        **options: Unpack[LearnerOptions],
    ) -> None:
        super().__init__(encoder, head, homogenizers, **options)
        self.classes, self.seed = classes, seed
        self.test_lr, self.test_epochs, self.test_batch = test_lr, test_epochs, test_batch
        self.register_classifier(input_shape)

    # -- training ----------------------------------------------------------------------------------------------------

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        return {**parameters, "task.features": self.support_features(parameters, support).flatten(1)}

    # -- meta-test ---------------------------------------------------------------------------------------------------

    def adapted_outputs(self, support_x: Tensor, support_y: Tensor, query_x: Tensor) -> Tensor:
        check_classification(self, support_y)
        parameters, support = detach_all(self.live_parameters), self.support_at_meta_test(support_x, support_y)
        with torch.no_grad():
            features = self.support_features(parameters, support)
            ways = self.network.call("head.", parameters, support.buffers, features).shape[-1]
        features = features.flatten(1)
        generator = torch.Generator().manual_seed(self.seed)  # a new generator per task: tasks are independent
        classifier = self.make_classifier(features.shape[1], ways, generator).to(features)
        self.fit(classifier, features, support_y, generator)
        with torch.set_grad_enabled(torch.is_grad_enabled() and query_x.requires_grad):
            statistics = self.support_statistics(parameters, support)
            outputs: Tensor = classifier(self.query(parameters, support, query_x, None, statistics).features)
            return outputs

    def fit(self, classifier: nn.Module, features: Tensor, targets: Tensor, generator: torch.Generator) -> None:
        """Train a classifier on fixed features by SGD; afterwards its parameters have `requires_grad=False`."""
        parameters: list[Tensor] = list(classifier.parameters())
        velocities: list[Tensor | None] = [None] * len(parameters)
        with torch.enable_grad(), torch.autocast(features.device.type, enabled=False):
            for _ in range(self.test_epochs):
                order = to_device(torch.randperm(len(features), generator=generator, device="cpu"), features.device)
                for chosen in torch.split(order, self.test_batch):
                    value = self.loss(classifier(features[chosen]), targets[chosen])
                    gradients = torch.autograd.grad(value, parameters)
                    with torch.no_grad():  # not `torch.optim.SGD`: on a problem this small it doubles the time
                        sgd(
                            parameters, list(gradients), velocities, lr=self.test_lr, momentum=MOMENTUM,
                            dampening=DAMPENING, weight_decay=WEIGHT_DECAY, nesterov=False, maximize=False,
                        )  # fmt: skip
        classifier.requires_grad_(False)


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=Baseline,
        summary="classifies all training classes; at meta-test fits a new linear layer to each task",
        reference="Chen et al. 2019, arXiv 1904.04232",
        traits={"exact_rows"},
    )
