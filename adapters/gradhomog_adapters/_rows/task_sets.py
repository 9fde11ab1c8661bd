"""The support set and the query set of one task, as passed to a learner, and the part of a learner that they call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from gradhomog import Pipeline, TaskRow
from gradhomog_adapters._network.batch_norm import Statistics, SupportStatistics
from gradhomog_adapters._network.functional import Network, Parameters
from gradhomog_adapters._rows.gradients import Loss, Operator, Order
from gradhomog_adapters._rows.recompute import InnerStep, recompute_step
from gradhomog_adapters.execution import Execution

EvaluationPoints = Callable[[Parameters, "Support"], Sequence[Parameters]]
"""Function that returns the parameters at which the query loss is evaluated.

Its inputs are the parameters w.r.t. which the row is computed, and the support set.
"""

QueryRow = Callable[[EvaluationPoints, Parameters], TaskRow]
"""`query_row(points, at)`: the row ∇ L_Q(points(at)) w.r.t. `at`, with loss, outputs, features and their gradients."""


class RowLearner(Protocol):
    """The part of `FewShotLearner` that the engines and the sets of a task use."""

    encoder: nn.Module
    head: nn.Module
    homogenizers: Pipeline
    execution: Execution
    network: Network
    normalizations: SupportStatistics
    live_parameters: Mapping[str, Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]

    def row(self, parameters: Parameters, support: Support, query_row: QueryRow) -> TaskRow: ...
    def query_loss(self, parameters: Parameters, query: Query) -> tuple[Tensor, Tensor]: ...
    def combine_losses(self, losses: Sequence[Tensor]) -> Tensor: ...
    def support(
        self, x: Tensor, y: Tensor, begin: Callable[[Any], None], differentiate: Any, differentiate_twice: Any,
        buffers: Parameters | None = None,
    ) -> Support: ...  # fmt: skip
    def support_statistics(self, point: Parameters, support: Support) -> Statistics: ...
    def query(
        self, point: Parameters, support: Support, x: Tensor, y: Tensor | None, statistics: Statistics
    ) -> Query: ...


@dataclass(eq=False)
class Support:
    """Support set of one task, the argument of `adapt`.

    Attributes:
        x, y: inputs `[support, *input]` and targets `[support]` or `[support, outputs]`.
        steps: the number of inner steps: `inner_steps` in training, `test_steps` at meta-test.
        order: order of the derivatives of inner steps in the row: `"second"`, `"first"` (gradients are constants), or
            `"none"` (inner steps are not differentiated: at meta-test, and in training of learners such as iMAML).
        learner: the learner whose network the methods call.
        buffers: buffers of the network; each task has copies, because passes in training mode change them.
        begin, differentiate, differentiate_twice: of the engine: announces the part of the task to the homogenizers,
            computes gradients, and Hessian-vector products; use `gradient` and `hessian`.
        encoded: features that all inner steps share; None if the inner steps change the encoder.
        statistics: statistics of batch normalization on the support set, with which queries are normalized.
    """

    x: Tensor
    y: Tensor
    steps: int
    order: Order
    learner: RowLearner = field(repr=False)
    buffers: dict[str, Tensor] = field(repr=False)
    begin: Callable[[Any], None] = field(repr=False)
    differentiate: Callable[[Loss, Parameters, bool], dict[str, Tensor]] = field(repr=False)
    differentiate_twice: Callable[[Loss, Parameters], Operator] = field(repr=False)
    encoded: Tensor | None = field(default=None, repr=False)
    statistics: Statistics | None = field(default=None, repr=False)

    def features(self, parameters: Parameters) -> Tensor:
        """Features `[support, features]` of the support set under the given parameters."""
        return self.learner.network.call("encoder.", parameters, self.buffers, self.x)

    def outputs(self, parameters: Parameters, features: Tensor | None = None) -> Tensor:
        """Outputs `[support, ways]` of the network for the support set, or of the head for given `features`."""
        if features is None:
            return self.learner.network.call("", parameters, self.buffers, self.x)
        return self.learner.network.call("head.", parameters, self.buffers, features)

    def loss(self, parameters: Parameters, features: Tensor | None = None) -> Tensor:
        """L_S, the learner's loss on the support set; `features` are computed unless given."""
        return self.learner.loss(self.outputs(parameters, features), self.y)

    def gradient(self, loss: Loss, at: Parameters) -> dict[str, Tensor]:
        """∇loss w.r.t. the named tensors `at`: differentiable if `order` is `"second"`, otherwise constants."""
        return self.differentiate(loss, at, self.order == "second")

    def hessian(self, loss: Loss, at: Parameters) -> Operator:
        """v ↦ ∇²loss(at) v, for named tensors."""
        return self.differentiate_twice(loss, at)

    def recomputed(self, step: InnerStep) -> InnerStep:
        """Decorator of `step(k, adapted, state, fixed) -> adapted, state`: inner step k, as a function of the tensors
        that it changes, the inner optimizer's state, and the tensors that it only reads.

        With `Execution(recompute=True)` the graph of the step is built and freed in the backward pass.
        """
        if not self.learner.execution.recompute or self.order != "second":
            return step
        return recompute_step(step, self.buffers)


@dataclass(eq=False)
class Query:
    """Query set of one task, the argument of `query_loss`.

    Attributes:
        features: `[queries, features]`, after the `transform` stages of homogenizers.
        y: targets; None at meta-test.
        support: the support set of the task.
    """

    features: Tensor
    y: Tensor | None
    support: Support = field(repr=False)
    statistics: Statistics = field(repr=False)

    def outputs(self, parameters: Parameters) -> Tensor:
        """Outputs `[queries, ways]` of the head."""
        learner, buffers = self.support.learner, self.support.buffers
        with learner.normalizations.replay(self.statistics) if self.statistics else nullcontext():
            return learner.network.call("head.", parameters, buffers, self.features)
