"""Results of learners: rows of tasks, and scores at meta-test."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class TaskRow:
    """One task's row, with the loss, outputs and features that homogenizers and reports read.

    Attributes:
        loss: query loss of the adapted network, a detached scalar.
        gradients: one per parameter of `Learner.named_parameters`; None if the loss does not depend on it.
        outputs: outputs of the adapted network on the query set, detached.
        features: query features `[queries, features]` before and after each `transform` stage.
        feature_grads: gradient of the loss w.r.t. each of these.
    """

    loss: Tensor
    gradients: Mapping[str, Tensor | None]
    outputs: Tensor
    features: Sequence[Tensor] = ()
    feature_grads: Sequence[Tensor] = ()


@dataclass
class TaskRows:
    """The rows of a task batch.

    Attributes:
        jacobian: the rows by parameter name, `[tasks, *shape]`.
        losses: query losses, float64 `[tasks]`.
        accuracies: share of the query set that is classified correctly, float64 `[tasks]`; None for regression.
        features, feature_grads: before and after each `transform` stage, `[tasks, queries, features]`.
        unused: names of the parameters that no task's loss depends on; their rows are zero.
    """

    jacobian: dict[str, Tensor]
    losses: Tensor
    accuracies: Tensor | None
    features: Sequence[Tensor] = ()
    feature_grads: Sequence[Tensor] = ()
    unused: Set[str] = frozenset()


@dataclass
class Evaluation:
    """Scores of tasks at meta-test: accuracy for classification (higher is better), mean squared error for regression.

    Comparisons divide each mean squared error by `Domain.target_variance` if every domain has one.

    Attributes:
        scores: one per task.
        losses: one per task.
        domains: one name per task.
        metric: `"accuracy"`, `"mse"`, or `"nmse"` after that division.
    """

    scores: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)
    metric: str = "accuracy"

    @property
    def mean(self) -> float:
        return sum(self.scores) / len(self.scores)

    @property
    def half_width(self) -> float:
        """Half of the 95 % confidence interval of the mean over tasks: 1.96 s/√n with n − 1 in s; NaN for one task."""
        n = len(self.scores)
        if n < 2:
            return math.nan
        mean = self.mean
        return 1.96 * math.sqrt(sum((score - mean) ** 2 for score in self.scores) / (n - 1) / n)

    def __str__(self) -> str:
        return f"{self.metric} {self.mean:.4f} ± {self.half_width:.4f} over {len(self.scores)} tasks"
