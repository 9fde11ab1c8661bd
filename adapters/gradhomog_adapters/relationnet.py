"""RelationNet: a small network that is learnt says how far a query is related to a class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from gradhomog import DataError, LearnerSpec, OptionError, hookimpl
from gradhomog_adapters import _relation
from gradhomog_adapters._feature_shape import feature_shape
from gradhomog_adapters._metric import ABSENT, Metric, class_means, one_hot
from gradhomog_adapters._network.functional import Parameters, call_own
from gradhomog_adapters._network.norm import Norm, SupportStatistics, policy
from gradhomog_adapters.execution import Execution, ExecutionOptions
from gradhomog_adapters.few_shot import Query, Support


class RelationNet(Metric):
    """Learns features, and a relation module g, which decides from a class's mean and a query whether they belong
    together.

    c_w = mean of f(x) over the support examples of class w,  r_w(x) = σ(g([c_w; f(x)]))
    row_i = ∇ mean over queries and classes of (r_w(x) − 1[y = w])², by encoder and relation module

    Args:
        encoder, head, homogenizers: see `Learner`. Of the head only the number of outputs counts, the most classes that
            a task can have; it is not trained, its rows are zero.
        loss: as of `Learner`, called with the relations; by default what `objective` says.
        maps: whether the encoder gives maps `[n, C, h, w]`, as published, and g is two blocks of 3×3 convolution, batch
            normalization, ReLU and 2×2 max-pooling on `[c; f(x)]`, and two linear layers. Needs `input_shape`.
            Otherwise features are vectors, and g is two linear layers with a ReLU between, the form in which the
            authors relate pictures to vectors of attributes.
        input_shape: of one input, `[channels, height, width]` for images; by default the head's first linear layer
            tells the number of features, which are then vectors.
        hidden: ≥ 1, units between g's linear layers; by default 8 for maps, and as many as features for vectors.
        objective: `"mse"`, above; `"softmax"`, cross entropy of g without σ.
        execution, engine, compile, autocast, norm, recompute: see `Execution`. Normalization in g is over all pairs
            of a batch; with `norm="support"`, over those of the support set with the means.

    g is the module `learner.relation`. Outputs are relations in [0, 1], a class without a support example has 0; with
    `"softmax"` any numbers, and −∞. Rows are exact. Regression is refused (DataError). A `transform` acts on the
    features of the queries only, on maps as vectors of C·h·w numbers. Cost per task: one forward and backward pass, and
    one of g over queries · ways pairs.

    Source: Sung et al. 2018, arXiv 1711.06025, equations 1 and 2, figure 2; sections 3.3 and 3.4 for vectors.

    Deviations: (1) means of classes, as in Chen et al. 2019, where the authors add up the supports of a class; (2)
    convolutions in g are not padded from 10 pixels on, as in Chen et al., and a map of one line is not pooled; (3)
    normalization in g is with the batch's statistics at meta-test too, where their code, with momentum 1, is left with
    those of the last batch it saw; pairs with a class that is absent count among them; (4) σ, the squares and the mean
    in one scale: theirs sums squares in the text and takes their mean in code, as here.

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
        hidden: int | None = None,
        objective: Literal["mse", "softmax"] = "mse",
        loss: Any = None,
        execution: Execution | None = None,
        **keywords: Unpack[ExecutionOptions],
    ) -> None:
        if objective not in ("mse", "softmax"):
            raise OptionError(f"`objective` must be 'mse' or 'softmax'; got {objective!r}.")
        loss = loss or (squares if objective == "mse" else None)
        super().__init__(encoder, head, homogenizers, loss=loss, execution=execution, **keywords)
        if hidden is not None and hidden < 1:
            raise OptionError(f"`hidden` must be at least 1; got {hidden!r}.")
        self.objective = objective
        self.absent = 0.0 if objective == "mse" else ABSENT
        self._relating = SupportStatistics(())
        self.shape = feature_shape(self, input_shape)
        if not maps:
            self.shape = (math.prod(self.shape),)
            self.learn("relation", _relation.of_vectors(self.shape[0], hidden or self.shape[0]))
        elif len(self.shape) == 3:
            self.learn("relation", _relation.of_maps(self.shape, hidden or _relation.HIDDEN))
        else:
            raise OptionError(
                "`maps` needs an encoder that ends with maps [n, C, h, w], and `input_shape`; one input's features "
                f"have the shape {list(self.shape)}{' by the head' if input_shape is None else ''}. Leave "
                "torch.nn.Flatten() to the head, or use maps=False."
            )

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        own: Norm = "support" if self.execution.norm == "support" else "batch"
        with super().mode(training), policy([self.own], own) as self._relating:
            yield

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        task = self.described_classes(parameters, support)
        features = task["task.features"]
        if features[0].numel() != math.prod(self.shape):
            raise DataError(
                f"the relation module is for features of the shape {list(self.shape)}; the encoder gives "
                f"{list(features.shape[1:])}. Give `input_shape`."
            )
        task["task.features"] = features.reshape(-1, *self.shape)
        return {**parameters, **task, "task.means": class_means(task["task.features"], task["task.members"])}

    def outputs(self, parameters: Parameters, query: Query) -> Tensor:
        means = parameters["task.means"]
        with self._relating.record() as statistics:
            if self.execution.norm == "support" and self._relating.layers:
                self._relate(parameters, means, parameters["task.features"])
        with self._relating.replay(statistics):
            relations = self._relate(parameters, means, query.features.reshape(-1, *self.shape))
        return self.without_absent(parameters, relations.sigmoid() if self.objective == "mse" else relations)

    def _relate(self, parameters: Parameters, means: Tensor, features: Tensor) -> Tensor:
        """g of all pairs, `[n, ways]`."""
        both = (len(features), *means.shape)
        pairs = torch.cat([means.expand(both), features[:, None].expand(both)], dim=2)
        return call_own(self.own, parameters, "relation", pairs.flatten(0, 1)).to(features).reshape(both[:2])


def squares(relations: Tensor, targets: Tensor) -> Tensor:
    """The mean over queries and classes of (relation − 1 or 0)²."""
    return (relations - one_hot(targets, relations.shape[-1]).to(relations)).square().mean()


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=RelationNet,
        summary="classifies queries by a learnt relation of their features to the means of the classes",
        reference="Sung et al. 2018, arXiv 1711.06025",
        traits={"exact_rows"},
    )
