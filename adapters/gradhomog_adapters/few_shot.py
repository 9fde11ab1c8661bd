"""`FewShotLearner`: the base class of learners that adapt to a support set."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from gradhomog import Learner, OptionError, Task, TaskBatch, TaskKey, TaskRow
from gradhomog_adapters._network import validation
from gradhomog_adapters._network.batch_norm import Statistics, SupportStatistics
from gradhomog_adapters._network.functional import Network, Parameters
from gradhomog_adapters._rows.gradients import Order, autograd_gradient, autograd_hessian, detach_all
from gradhomog_adapters._rows.one_task import autograd_row
from gradhomog_adapters._rows.task_sets import Query, QueryRow, Support
from gradhomog_adapters._rows.vectorized import VectorizedRows
from gradhomog_adapters.execution import Execution, ExecutionOptions

__all__ = ["FewShotLearner", "Query", "Support"]


class FewShotLearner(Learner):
    """Base class of learners: subclasses implement `adapt` and can override `outputs` and `query_loss`.

    θ_i = adapt(θ, S_i),  row_i = ∇_θ query_loss(θ_i(θ), Q_i)

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        execution: how rows are computed; see `Execution`.
        engine, compile, autocast, norm, recompute: the fields of `execution`, as keywords instead of an object.

    Parameters are named tensors: `encoder.*`, `head.*` and, for learners that call `register_module`, `learner.*`.
    `adapt` must be a pure function of the parameters and the support set, because both the loop and `vmap` run it: it
    computes gradients with `support.gradient` and never modifies a tensor in place. Besides the parameters, it can
    return floating-point tensors that `outputs` needs, such as class means, under other names. To support `recompute`,
    decorate the function of an inner step with `support.recomputed`, as in `MAML`.

    The base class encodes the queries, passes their features through homogenizers, copies buffers for each task and
    computes the row with one backward pass. An exception in `adapt` leaves network and learner unchanged.

    >>> import torch
    >>> from gradhomog import TaskBatch
    >>> class OneStep(FewShotLearner):
    ...     def adapt(self, parameters, support):
    ...         gradients = support.gradient(support.loss, parameters)
    ...         return {name: parameters[name] - 0.1 * gradients[name] for name in parameters}
    >>> _ = torch.manual_seed(0)
    >>> learner = OneStep(torch.nn.Linear(1, 8), torch.nn.Linear(8, 1), "pcgrad")
    >>> x = torch.linspace(-1, 1, 5)[:, None].repeat(3, 1, 1)
    >>> report = learner.step(TaskBatch(x, x.sin(), x, x.sin()), torch.optim.Adam(learner.parameters(), lr=1e-3))
    >>> tuple(report.cosines.shape)
    (3, 3)
    """

    order: Order = "second"
    """Order of the derivatives of inner steps that rows contain; see `Support`."""

    inner_steps: int = 1
    """Number of inner steps in training: the value of `Support.steps`."""

    test_steps: int | None = None
    """Number of inner steps at meta-test; None: as in training."""

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        loss: Any = None,
        execution: Execution | None = None,
        **keywords: Unpack[ExecutionOptions],
    ) -> None:
        super().__init__(encoder, head, homogenizers, loss)
        self.execution = Execution.of(execution, keywords)
        validation.check_supported(encoder, head)
        self.network = Network(encoder, head)
        self.normalizations = SupportStatistics(())
        self.live_parameters: Mapping[str, Tensor] = {}
        self._vectorized_rows = VectorizedRows()

    # -- methods that define a learner -------------------------------------------------------------------------------

    @abstractmethod
    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        """Return the parameters adapted to the support set of a task."""

    def outputs(self, parameters: Parameters, query: Query) -> Tensor:
        """Outputs `[queries, ways]` for the query set, also at meta-test. Default: those of the head."""
        return query.outputs(parameters)

    def query_loss(self, parameters: Parameters, query: Query) -> tuple[Tensor, Tensor]:
        """Query loss, whose gradient is the row, and outputs. At meta-test `outputs` is called instead."""
        assert query.y is not None
        outputs = self.outputs(parameters, query)
        return self.loss(outputs, query.y), outputs

    # -- methods for learners with other rows ------------------------------------------------------------------------

    def row(self, parameters: Parameters, support: Support, query_row: QueryRow) -> TaskRow:
        """Row of a task, as gradients by parameter name. A missing or None gradient is zero.

        `query_row(points, at)` computes ∇ query_loss(points(at, support)) w.r.t. the tensors `at`; `points` is usually
        `evaluation_points`.
        """
        return query_row(self.evaluation_points, parameters)

    def evaluation_points(self, parameters: Parameters, support: Support) -> Sequence[Parameters]:
        """Return a list of parameters at which the query loss is evaluated; by default only the adapted parameters.

        If the list has several entries, `combine_losses` combines their losses.
        """
        return [self.adapt(parameters, support)]

    def combine_losses(self, losses: Sequence[Tensor]) -> Tensor:
        """Combine the query losses at `evaluation_points` into the loss of the row. Default: their sum."""
        return torch.stack(list(losses)).sum()

    # -- methods that the engines call -------------------------------------------------------------------------------

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        self.live_parameters = dict(self.named_parameters())
        if not self.live_parameters:
            raise OptionError("no parameter of encoder and head requires grad; at least one must be trainable.")
        device = next(iter(self.live_parameters.values())).device
        with super().mode(training), self.execution.mode((self.encoder, self.head), device) as self.normalizations:
            yield

    def batch_row(self, batch: TaskBatch) -> TaskRow | None:
        return self._vectorized_rows.try_rows(self, batch)

    def task_row(self, task: Task, key: TaskKey) -> TaskRow:
        return autograd_row(self, task, key)

    def adapted_outputs(self, support_x: Tensor, support_y: Tensor, query_x: Tensor) -> Tensor:
        return self.outputs_at_meta_test(self.support_at_meta_test(support_x, support_y), query_x)

    def outputs_at_meta_test(self, support: Support, query_x: Tensor) -> Tensor:
        """Outputs after adaptation to a support set of `support_at_meta_test`.

        The outputs are differentiable w.r.t. `query_x` if `query_x` requires grad.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and query_x.requires_grad):
            point = self.adapt(detach_all(self.live_parameters), support)
            statistics = self.support_statistics(point, support)
            return self.outputs(point, self.query(point, support, query_x, None, statistics))

    def support(
        self, x: Tensor, y: Tensor, begin: Callable[[Any], None], differentiate: Any, differentiate_twice: Any,
        buffers: Parameters | None = None,
    ) -> Support:  # fmt: skip
        """Support set of a task in training."""
        buffers = self.network.buffers() if buffers is None else dict(buffers)
        return Support(x, y, self.inner_steps, self.order, self, buffers, begin, differentiate, differentiate_twice)

    def support_at_meta_test(self, x: Tensor, y: Tensor) -> Support:
        """Support set of a task at meta-test."""
        support = self.support(x, y, _ignore, autograd_gradient, autograd_hessian)
        steps = self.inner_steps if self.test_steps is None else self.test_steps
        return replace(support, steps=steps, order="none")

    def support_statistics(self, point: Parameters, support: Support) -> Statistics:
        """Statistics of the support set under adapted parameters, which normalize the queries if `norm="support"`."""
        if self.execution.norm != "support" or not self.normalizations.layers:
            return {}
        if support.statistics is not None:
            return support.statistics
        with self.normalizations.record() as found:  # also for the head, on the inputs that `outputs` passes to it
            self.outputs(point, Query(support.features(point), None, support, {}))
        return found

    def query(self, point: Parameters, support: Support, x: Tensor, y: Tensor | None, statistics: Statistics) -> Query:
        """Query set, encoded with adapted parameters."""
        with self.normalizations.replay(statistics) if statistics else nullcontext():
            features = self.network.call("encoder.", point, support.buffers, x)
        return Query(features, y, support, statistics)


def _ignore(part: Any) -> None:
    """Do nothing: no homogenizer acts at meta-test."""
