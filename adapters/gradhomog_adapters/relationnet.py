"""RelationNet: classify queries by a learned relation to the class means."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from gradhomog import DataError, LearnerSpec, OptionError, hookimpl
from gradhomog_adapters._metric import MetricLearner, class_means, feature_shape, one_hot
from gradhomog_adapters._network import Parameters
from gradhomog_adapters._network_mode import Norm, SupportStatistics, norm_policy
from gradhomog_adapters._option_types import Count
from gradhomog_adapters.few_shot import LearnerOptions, Query, Support

# From the authors' code and that of Chen et al. 2019.
DEFAULT_HIDDEN = 8
MIN_UNPADDED_SIZE = 10  # pixels; smaller maps are padded


def make_feature_map_module(shape: Sequence[int], hidden: int) -> nn.Module:
    """Module for pairs `[n, 2C, h, w]`: two blocks of convolution, batch normalization, ReLU and pooling, then two
    linear layers.

    Batch normalization has no running statistics: in the authors' code, with momentum 1, they are those of the last
    batch.
    """
    channels, height, width = shape
    padding = int(height < MIN_UNPADDED_SIZE and width < MIN_UNPADDED_SIZE)
    layers: list[nn.Module] = []
    for inputs in (2 * channels, channels):
        convolution = nn.Conv2d(inputs, channels, 3, padding=padding)
        nn.init.normal_(convolution.weight, std=math.sqrt(2 / (9 * channels)))
        layers += [convolution, nn.BatchNorm2d(channels, track_running_stats=False), nn.ReLU()]
        height, width = height + 2 * padding - 2, width + 2 * padding - 2
        if min(height, width) > 1:  # pooling a map of height or width 1 gives an empty map
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
    classifier = [nn.Flatten(), nn.Linear(channels * height * width, hidden), nn.ReLU(), nn.Linear(hidden, 1)]
    return nn.Sequential(*layers, *classifier)


def make_vector_module(features: int, hidden: int) -> nn.Module:
    """Module for pairs `[n, 2 · features]`: two linear layers, as the authors use for images and attribute vectors."""
    return nn.Sequential(nn.Linear(2 * features, hidden), nn.ReLU(), nn.Linear(hidden, 1))


class RelationNetOptions(LearnerOptions, total=False):
    """Keywords of `RelationNet`."""

    maps: bool
    input_shape: Sequence[int] | None
    hidden: Count | None
    objective: Literal["mse", "softmax"]


class RelationNet(MetricLearner):
    """Learns features and a relation module g, which scores the pair of a class mean and a query.

    c_w = mean of f(x) over the support examples of class w,  r_w(x) = σ(g([c_w; f(x)]))
    row_i = ∇ mean over queries and classes of (r_w(x) − 1[y = w])², w.r.t. encoder and relation module

    Args:
        encoder, head, homogenizers: see `Learner`. Only the number of outputs of the head is used, the maximum number
            of classes of a task; the head is not trained and its rows are zero.
        loss: see `Learner`, called with the relations; default: `objective`.
        maps: true: the encoder returns maps `[n, C, h, w]`, as published, and g is two blocks of 3×3 convolution, batch
            normalization, ReLU and 2×2 max-pooling on `[c; f(x)]`, then two linear layers. Requires `input_shape`.
            False: features are vectors, and g is two linear layers with a ReLU between them, which the authors use for
            images and attribute vectors.
        input_shape: shape of one input, `[channels, height, width]` for images; default: features are vectors, with the
            number of inputs of the head's first linear layer.
        hidden: ≥ 1, units between g's linear layers; default: 8 for maps, the number of features for vectors.
        objective: `"mse"`, above; `"softmax"`, cross entropy of g without σ.
        engine, compile, autocast, norm, recompute: see `Execution`. Batch normalization in g is over all
            pairs of a batch; with `norm="support"`, over the pairs of support examples and class means.

    g is the module `learner.relation`. Outputs are relations in [0, 1], and 0 for a class without a support example;
    with `"softmax"` they are unbounded, and −∞ for such a class. Rows are exact. Regression tasks cause a DataError. A
    `transform` acts on the query features only; maps are transformed as vectors of length C·h·w. Cost per task: one
    forward and backward pass, and one of g over queries · ways pairs.

    Source: Sung et al. 2018, arXiv 1711.06025, equations 1 and 2, figure 2; sections 3.3 and 3.4 for vectors.

    Deviations: (1) class means, as in Chen et al. 2019; the authors sum the support features of a class; (2)
    convolutions in g are not padded for maps of 10 or more pixels, as in Chen et al., and maps of height or width 1 are
    not pooled; (3) batch normalization in g uses the batch's statistics also at meta-test, including pairs with absent
    classes; with momentum 1, the authors' code uses those of the last batch; (4) the loss is the mean of the
    squares, as in the authors' code; their text has the sum.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> encoder = torch.nn.Conv2d(1, 4, 3)
    >>> learner = RelationNet(encoder, torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 2)), maps=True,
    ...                       input_shape=[1, 8, 8])
    >>> learner.predict(torch.rand(2, 1, 8, 8), torch.tensor([0, 1]), torch.rand(3, 1, 8, 8)).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        maps: bool = False,
        input_shape: Sequence[int] | None = None,
        hidden: Count | None = None,
        objective: Literal["mse", "softmax"] = "mse",
        **options: Unpack[LearnerOptions],
    ) -> None:
        if objective == "mse":
            options["loss"] = options.get("loss") or relation_mse
        super().__init__(encoder, head, homogenizers, **options)
        self.objective = objective
        if objective == "mse":
            self.absent_output = 0.0
        self._relation_statistics = SupportStatistics(())
        self.shape = feature_shape(self, input_shape)
        if not maps:
            self.shape = (math.prod(self.shape),)
            self.register_module("relation", make_vector_module(self.shape[0], hidden or self.shape[0]))
        elif len(self.shape) == 3:
            self.register_module("relation", make_feature_map_module(self.shape, hidden or DEFAULT_HIDDEN))
        else:
            raise OptionError(
                "`maps` requires an encoder that returns maps [n, C, h, w], and `input_shape`; features of one input "
                f"have shape {list(self.shape)}{' according to the head' if input_shape is None else ''}. Move "
                "torch.nn.Flatten() to the head, or use maps=False."
            )

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        policy: Norm = "support" if self.execution.norm == "support" else "batch"
        with super().mode(training), norm_policy([self.extra_modules], policy) as self._relation_statistics:
            yield

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        task = self.class_tensors(parameters, support)
        features = task["task.features"]
        if features[0].numel() != math.prod(self.shape):
            raise DataError(
                f"the relation module requires features of shape {list(self.shape)}; the encoder returned "
                f"{list(features.shape[1:])}. Set `input_shape`."
            )
        task["task.features"] = features.reshape(-1, *self.shape)
        return {**parameters, **task, "task.means": class_means(task["task.features"], task["task.members"])}

    def outputs(self, parameters: Parameters, query: Query) -> Tensor:
        return self.relations(parameters, self.scores(parameters, self.pairs(parameters, query.features)))

    def pairs(self, parameters: Parameters, features: Tensor) -> Tensor:
        """Return the pairs [class mean; features] of each example with all classes, `[n, ways, 2C, h, w]`."""
        means = parameters["task.means"]
        shape = (len(features), *means.shape)
        features = features.reshape(-1, 1, *self.shape)
        return torch.cat([means.expand(shape), features.expand(shape)], dim=2)

    def scores(self, parameters: Parameters, pairs: Tensor) -> Tensor:
        """Return g of all pairs, `[n, ways]`."""
        with self.relation_normalization(parameters):
            return self._relation_scores(parameters, pairs)

    def relations(self, parameters: Parameters, scores: Tensor) -> Tensor:
        """Return the outputs for scores `[n, ways]`: σ of them, unless the objective is `"softmax"`."""
        return self.mask_absent_classes(parameters, scores.sigmoid() if self.objective == "mse" else scores)

    @contextmanager
    def relation_normalization(self, parameters: Parameters) -> Iterator[None]:
        """Context of one pass of g, in which `norm="support"` uses the statistics of the support set's pairs."""
        with self._relation_statistics.record() as statistics:
            if self.execution.norm == "support" and self._relation_statistics.layers:
                self._relation_scores(parameters, self.pairs(parameters, parameters["task.features"]))
        with self._relation_statistics.replay(statistics):
            yield

    def _relation_scores(self, parameters: Parameters, pairs: Tensor) -> Tensor:
        scores = self.call_extra_module(parameters, "relation", pairs.flatten(0, 1))
        return scores.to(pairs).reshape(pairs.shape[:2])


def relation_mse(relations: Tensor, targets: Tensor) -> Tensor:
    """Mean over queries and classes of (relation − one-hot label)²."""
    return (relations - one_hot(targets, relations.shape[-1]).to(relations)).square().mean()


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=RelationNet,
        summary="classifies queries by a learned relation of their features to the class means",
        reference="Sung et al. 2018, arXiv 1711.06025",
        traits={"exact_rows"},
    )
