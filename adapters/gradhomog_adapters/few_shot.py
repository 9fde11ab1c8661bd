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
from gradhomog_adapters._network import usable as _usable
from gradhomog_adapters._network.functional import Network, Parameters
from gradhomog_adapters._network.norm import Statistics, SupportStatistics
from gradhomog_adapters._rows.at_once import RowsAtOnce
from gradhomog_adapters._rows.gradients import Order, constants, gradient_on_graph, hessian_on_graph
from gradhomog_adapters._rows.on_graph import row_on_graph
from gradhomog_adapters._rows.sets import Query, QueryRow, Support
from gradhomog_adapters.execution import Execution, ExecutionOptions

__all__ = ["FewShotLearner", "Query", "Support"]


class FewShotLearner(Learner):
    """A learner that is defined by `adapt` and, if its outputs are not those of the head, by `outputs` or `query_loss`.

    θ_i = adapt(θ, S_i),  row_i = ∇_θ query_loss(θ_i(θ), Q_i)

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        execution: how rows are formed; see `Execution`.
        engine, compile, autocast, norm, recompute: the fields of `execution`, as keywords in its place.

    Parameters are named tensors: `encoder.*`, `head.*` and, of learners that call `learn`, `learner.*`. `adapt` is a
    pure function of them and of the support set, so that the loop and `vmap` can both run it: it takes gradients by
    `support.gradient`, and never writes to a tensor in place. Other tensors that `outputs` needs of a task, such as the
    means of its classes, are returned beside the parameters under names of their own; they are of floating point. For
    `recompute` an inner step is a function decorated by `support.recomputed`, as in `MAML`.

    The base class encodes the queries, passes their features through homogenizers, copies buffers for each task and
    forms the row by one backward pass. An exception in `adapt` leaves network and learner as they were.

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
    """Which derivatives of inner steps rows need."""

    inner_steps: int = 1
    """`Support.steps` while training."""

    test_steps: int | None = None
    """`Support.steps` at meta-test; None: as while training."""

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
        _usable.check(encoder, head)
        self.network = Network(encoder, head)
        self.normalizations = SupportStatistics(())
        self.live_parameters: Mapping[str, Tensor] = {}
        self._rows_at_once = RowsAtOnce()

    # -- a learner is these ------------------------------------------------------------------------------------------

    @abstractmethod
    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        """The parameters of a task, from those of the learner and the task's support set."""

    def outputs(self, parameters: Parameters, query: Query) -> Tensor:
        """The outputs `[queries, ways]` for the query set under adapted parameters: the head's; at meta-test too."""
        return query.outputs(parameters)

    def query_loss(self, parameters: Parameters, query: Query) -> tuple[Tensor, Tensor]:
        """The loss that rows are gradients of, and the outputs. At meta-test `outputs` is called instead."""
        assert query.y is not None
        outputs = self.outputs(parameters, query)
        return self.loss(outputs, query.y), outputs

    # -- for learners whose row is something else --------------------------------------------------------------------

    def row(self, parameters: Parameters, support: Support, query_row: QueryRow) -> TaskRow:
        """The row of a task, by the names of `parameters` (left out or None: zero).

        `query_row(path, at)` is the row ∇ query_loss(path(at, support)) by the tensors `at`.
        """
        return query_row(self.path, parameters)

    def path(self, parameters: Parameters, support: Support) -> Sequence[Parameters]:
        """The points at which the query loss is taken: the adapted parameters. Of several, `total` forms the sum."""
        return [self.adapt(parameters, support)]

    def total(self, losses: Sequence[Tensor]) -> Tensor:
        """The loss of a row, where `path` has several points: of the query losses at each; by default their sum."""
        return torch.stack(list(losses)).sum()

    # -- for the engines ---------------------------------------------------------------------------------------------

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        self.live_parameters = dict(self.named_parameters())
        if not self.live_parameters:
            raise OptionError("no parameter of encoder and head requires grad any more; at least one must be learnt.")
        device = next(iter(self.live_parameters.values())).device
        with super().mode(training), self.execution.mode((self.encoder, self.head), device) as self.normalizations:
            yield

    def batch_row(self, batch: TaskBatch) -> TaskRow | None:
        return self._rows_at_once.try_rows(self, batch)

    def task_row(self, task: Task, key: TaskKey) -> TaskRow:
        return row_on_graph(self, task, key)

    def adapted_outputs(self, support_x: Tensor, support_y: Tensor, query_x: Tensor) -> Tensor:
        return self.outputs_at_meta_test(self.support_at_meta_test(support_x, support_y), query_x)

    def outputs_at_meta_test(self, support: Support, query_x: Tensor) -> Tensor:
        """Adapt to a support set of `support_at_meta_test`; the outputs are differentiable by queries that are."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and query_x.requires_grad):
            point = self.adapt(constants(self.live_parameters), support)
            statistics = self.support_statistics(point, support)
            return self.outputs(point, self.query(point, support, query_x, None, statistics))

    def support(
        self, x: Tensor, y: Tensor, begin: Callable[[Any], None], differentiate: Any, differentiate_twice: Any,
        buffers: Parameters | None = None,
    ) -> Support:  # fmt: skip
        """The support set of a task while training."""
        buffers = self.network.buffers() if buffers is None else dict(buffers)
        return Support(x, y, self.inner_steps, self.order, self, buffers, begin, differentiate, differentiate_twice)

    def support_at_meta_test(self, x: Tensor, y: Tensor) -> Support:
        """The support set of a task at meta-test."""
        support = self.support(x, y, _ignore, gradient_on_graph, hessian_on_graph)
        steps = self.inner_steps if self.test_steps is None else self.test_steps
        return replace(support, steps=steps, order="none")

    def support_statistics(self, point: Parameters, support: Support) -> Statistics:
        """The statistics that `norm="support"` normalizes queries with: of the support set under adapted parameters."""
        if self.execution.norm != "support" or not self.normalizations.layers:
            return {}
        if support.statistics is not None:
            return support.statistics
        with self.normalizations.record() as found:  # of the head too, on what `outputs` gives it
            self.outputs(point, Query(support.features(point), None, support, {}))
        return found

    def query(self, point: Parameters, support: Support, x: Tensor, y: Tensor | None, statistics: Statistics) -> Query:
        """The query set, encoded under adapted parameters."""
        with self.normalizations.replay(statistics) if statistics else nullcontext():
            features = self.network.call("encoder.", point, support.buffers, x)
        return Query(features, y, support, statistics)


def _ignore(part: Any) -> None:
    """At meta-test no homogenizer acts."""
