"""Base class of metric learners, which compare queries with support features, and the shape of features."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradhomog import DataError, OptionError
from gradhomog_adapters._network import Parameters, linear_layers
from gradhomog_adapters._network_mode import Statistics
from gradhomog_adapters.few_shot import FewShotLearner, Query, Support


def feature_shape(learner: FewShotLearner, input_shape: Sequence[int] | None) -> tuple[int, ...]:
    """Feature shape of one input: `(features,)` or `(C, h, w)`.

    Args:
        input_shape: shape of one input; the encoder runs on two zero inputs and is not changed. None: return the number
            of inputs of the head's first linear layer.

    Raises:
        OptionError: the head has no linear layer, or the encoder does not accept such inputs.
    """
    if input_shape is None:
        message = "`input_shape` must be given, as in [3, 84, 84]: the head has no torch.nn.Linear with features."
        return (linear_layers(learner.head, message)[0].in_features,)
    if not input_shape or any(length < 1 for length in input_shape):
        raise OptionError(f"`input_shape` must contain positive integers; got {list(input_shape)}.")
    parameters = learner.named_parameters()
    zeros = next(iter(parameters.values())).new_zeros(2, *input_shape)
    try:
        with learner.mode(training=False), torch.no_grad():
            features = learner.network.call("encoder.", parameters, learner.network.buffers(), zeros)
    except (RuntimeError, ValueError, IndexError) as cause:
        raise OptionError(
            f"`input_shape` must be the shape of one input of the encoder, which does not accept {list(input_shape)}: "
            f"{str(cause).strip().partition(chr(10))[0]}"
        ) from cause
    return tuple(features.shape[1:])


class MetricLearner(FewShotLearner):
    """A learner that adapts no parameters: `adapt` returns tensors `task.*` that describe the classes of a task, and
    `outputs` compares the query features with them.

    The head is not trained and its rows are zero; only its number of outputs is used, the maximum number of classes of
    a task. A class without a support example has output −∞, probability zero: it does not affect loss and accuracy. A
    query of such a class makes the loss infinite; the task is then reported as not finite.

    The homogenizers' `transform` is applied to the query features only, as in MAML, where the head is adapted to
    support features that are not transformed. Rotating both would change neither distances nor inner products. Feature
    maps `[n, C, h, w]` are transformed as vectors of length C·h·w.
    """

    absent_output: float = -torch.inf
    """Output of a class without a support example."""

    def class_tensors(self, parameters: Parameters, support: Support) -> dict[str, Tensor]:
        """Return `task.features`, the support features `[support, *]`, and `task.members`, the one-hot labels
        `[support, ways]`."""
        check_classification(self, support.y)
        features = self.support_features(parameters, support)
        with torch.no_grad():
            ways = self.network.call("head.", parameters, support.buffers, features.detach()).shape[-1]
        return {"task.features": features, "task.members": one_hot(support.y, ways).to(features)}

    def support_features(self, parameters: Parameters, support: Support) -> Tensor:
        """Features of the support set. Their statistics are recorded, for the queries under `norm="support"`."""
        with self.normalizations.record() as support.statistics:
            return at_least_float32(support.features(parameters))

    def query(self, point: Parameters, support: Support, x: Tensor, y: Tensor | None, statistics: Statistics) -> Query:
        """Query set, with features flattened to `[queries, features]`."""
        query_set = super().query(point, support, x, y, statistics)
        query_set.features = at_least_float32(query_set.features).flatten(1)
        return query_set

    def mask_absent_classes(self, parameters: Parameters, outputs: Tensor) -> Tensor:
        """Outputs `[queries, ways]`, with `absent_output` for classes without a support example."""
        return torch.where(parameters["task.members"].sum(0) > 0, outputs, self.absent_output)


def check_classification(learner: object, targets: Tensor) -> None:
    """Raise DataError if the targets are those of a regression."""
    if targets.is_floating_point():
        raise DataError(
            f"{type(learner).__name__} supports classification only; the targets are {targets.dtype}. "
            "Use int64 class labels, or another learner for regression, such as maml."
        )


def at_least_float32(features: Tensor) -> Tensor:
    """Convert to float32 or wider: bfloat16 has eight bits, too few for differences of distances."""
    return features.to(torch.promote_types(features.dtype, torch.float32))


def one_hot(targets: Tensor, ways: int) -> Tensor:
    """One-hot labels, bool `[n, ways]`, of classes `[n]`; does not synchronize with the device."""
    return targets[:, None] == torch.arange(ways, device=targets.device)


def class_means(support: Tensor, members: Tensor) -> Tensor:
    """Mean features of each class, `[ways, *]`; zero for a class without examples."""
    with torch.autocast(support.device.type, enabled=False):
        means: Tensor = (members.T @ support.flatten(1)) / members.sum(0).clamp_min(1)[:, None]
    return means.reshape(-1, *support.shape[1:])
