"""`FewShotLearner`, the base class of learners that adapt to a support set, and the sets of a task."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gradhomog import Learner, OptionError, Task, TaskBatch, TaskKey, TaskRow
from gradhomog_adapters import _gradients
from gradhomog_adapters._gradients import Loss, Operator, Order, detach_all, differentiate, zeros_for_missing
from gradhomog_adapters._network import Network, Parameters, StepModule, check_supported
from gradhomog_adapters._network_mode import Norm, Statistics, SupportStatistics
from gradhomog_adapters._recompute import InnerStep, recompute_step
from gradhomog_adapters._vectorized import VectorizedRows
from gradhomog_adapters.execution import Autocast, Compile, Engine, Execution, ExecutionOptions

__all__ = ["FewShotLearner", "LearnerOptions", "Query", "Support"]


class LearnerOptions(ExecutionOptions, total=False):
    """Keywords of every learner, which a subclass passes on to `FewShotLearner`."""

    loss: Any


EvaluationPoints = Callable[[Parameters, "Support"], Sequence[Parameters]]
"""Function that returns the parameters at which the query loss is evaluated.

Its inputs are the parameters w.r.t. which the row is computed, and the support set.
"""

Tasks = TypeVar("Tasks", Task, TaskBatch)

QueryRow = Callable[[EvaluationPoints, Parameters], TaskRow]
"""`query_row(points, at)`: the row ∇ L_Q(points(at)) w.r.t. `at`, with loss, outputs, features and their gradients."""


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
        begin, differentiate: of the engine: announces the part of the task to the homogenizers, and computes gradients;
            use `gradient`.
        hessian: of the engine: `hessian(loss, at)` is v ↦ ∇²loss(at) v, for named tensors.
        encoded: features that all inner steps share; None if the inner steps change the encoder.
        statistics: statistics of batch normalization on the support set, with which queries are normalized.
    """

    x: Tensor
    y: Tensor
    steps: int
    order: Order
    learner: FewShotLearner = field(repr=False)
    buffers: dict[str, Tensor] = field(repr=False)
    begin: Callable[[Any], None] = field(repr=False)
    differentiate: Callable[[Loss, Parameters, bool], dict[str, Tensor]] = field(repr=False)
    hessian: Callable[[Loss, Parameters], Operator] = field(repr=False)
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


class FewShotLearner(Learner):
    """Base class of learners: subclasses implement `adapt` and can override `outputs` and `query_loss`.

    θ_i = adapt(θ, S_i),  row_i = ∇_θ query_loss(θ_i(θ), Q_i)

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        engine, compile, autocast, norm, recompute: how rows are computed; see `Execution`.

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
        engine: Engine = "auto",
        compile: Compile = False,
        autocast: Autocast = None,
        norm: Norm = "batch",
        recompute: bool = False,
    ) -> None:
        super().__init__(encoder, head, homogenizers, loss)
        self.execution = Execution(engine, compile, autocast, norm, recompute)
        check_supported(encoder, head)
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

    # -- methods for learners with further modules -------------------------------------------------------------------

    def extra_parameter(self, parameters: Parameters, module: str, name: str) -> Tensor:
        """Parameter `learner.<module>.<name>`: from `parameters`, or its stored value if it is frozen."""
        found = parameters.get(f"learner.{module}.{name}")
        return self.extra_modules[module].get_parameter(name).detach() if found is None else found

    def call_extra_module(self, parameters: Parameters, module: str, inputs: Tensor) -> Tensor:
        """Output of a module with the parameters `learner.<module>.*`; frozen ones keep their stored values."""
        prefix = f"learner.{module}."
        tensors = {n.removeprefix(prefix): tensor for n, tensor in parameters.items() if n.startswith(prefix)}
        result: Tensor = functional_call(self.extra_modules[module], tensors, (inputs,))
        return result

    @property
    def completed_steps(self) -> int:
        """The number of completed meta-steps, for learners with the module `count`, a `StepCounter`."""
        return int(self.extra_modules["count"].get_extra_state()["step"])

    def on_step_end(self) -> None:
        for module in self.extra_modules.values():
            if isinstance(module, StepModule):
                module.on_step_end()

    # -- methods for learners with other rows ------------------------------------------------------------------------

    def prepared(self, tasks: Tasks) -> Tasks:
        """Return the tasks whose rows are computed in place of the given ones: with other examples or labels."""
        return tasks

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
        return self.autograd_row(self.prepared(task), key)

    def autograd_row(self, task: Task, key: TaskKey) -> TaskRow:
        """Row of one task with `torch.autograd.grad`: one backward pass, which frees the graph.

        `begin` of homogenizers is called once for the support set and once for the query set.
        """
        pipe = self.homogenizers
        begin = partial(pipe.begin, key)
        support = self.support(task.support_x, task.support_y, begin)

        def query_row(evaluation_points: EvaluationPoints, at: Parameters) -> TaskRow:
            at = {name: t if t.requires_grad else t.detach().requires_grad_() for name, t in at.items()}
            points = evaluation_points(at, support)
            statistics = [self.support_statistics(point, support) for point in points]
            begin("query")
            losses: list[Tensor] = []
            features_of_passes: list[Tensor] = []  # features before and after each `transform` stage, of all passes
            for point, record in zip(points, statistics, strict=True):
                query = self.query(point, support, task.query_x, task.query_y, record)
                # The features of a frozen encoder are leaves: derivatives end there.
                x = query.features if query.features.requires_grad else query.features.detach().requires_grad_()
                stage_features = pipe.transform(x[None], [key])
                query.features = stage_features[-1][0]
                loss, outputs = self.query_loss(point, query)
                losses.append(loss)
                features_of_passes += stage_features
            loss = losses[0] if len(losses) == 1 else self.combine_losses(losses)
            # Differentiate w.r.t. the tensors that `transform` returned: a slice of one has no separate gradient.
            gradients, by_features = differentiate(loss, at, features_of_passes)
            grads = zeros_for_missing(by_features, features_of_passes)
            # A homogenizer changes the query features of all passes alike, so their gradients are summed over passes.
            stages = len(stage_features)
            feature_grads = [sum(grads[n::stages][1:], grads[n])[0] for n in range(stages)]
            features = [x[0].detach() for x in stage_features]
            return TaskRow(loss.detach(), gradients, outputs.detach(), features, feature_grads)

        begin("support")
        return self.row(self.live_parameters, support, query_row)

    def func_row(
        self, parameters: Parameters, buffers: Parameters, support_x: Tensor, support_y: Tensor, query_x: Tensor,
        query_y: Tensor,
    ) -> TaskRow:  # fmt: skip
        """Row of one task with `torch.func`, equal to `autograd_row`: `vjp` up to the query features, then `grad`.

        No homogenizer acts in between.
        """
        derivatives = _gradients.func_gradient, _gradients.func_hessian
        support = self.support(support_x, support_y, ignore, *derivatives, buffers)

        def query_row(evaluation_points: EvaluationPoints, at: Parameters) -> TaskRow:
            def features_from(at: dict[str, Tensor]) -> Any:
                points = evaluation_points(at, support)
                statistics = [self.support_statistics(point, support) for point in points]
                pairs = zip(points, statistics, strict=True)
                queries = [self.query(point, support, query_x, query_y, record) for point, record in pairs]
                return points, statistics, [query.features for query in queries]

            def loss_from_features(points: Any, statistics: Any, features: Any) -> tuple[Tensor, Any]:
                losses = []
                for point, record, query_features in zip(points, statistics, features, strict=True):
                    loss, outputs = self.query_loss(point, Query(query_features, query_y, support, record))
                    losses.append(loss)
                return losses[0] if len(losses) == 1 else self.combine_losses(losses), outputs

            vjp: Any = torch.func.vjp(features_from, dict(at)) if at else (features_from({}), lambda gradients: ({},))
            inputs, pullback = vjp
            by = (0, 1, 2) if at else (2,)
            gradient: Any = torch.func.grad_and_value(loss_from_features, argnums=by, has_aux=True)
            gradients, (loss, outputs) = gradient(*inputs)
            grads, row = gradients[-1], pullback(gradients)[0]
            return TaskRow(loss, row, outputs, [inputs[-1][-1]], [sum(grads[1:], grads[0])])

        return self.row(parameters, support, query_row)

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
        self, x: Tensor, y: Tensor, begin: Callable[[Any], None], differentiate: Any = _gradients.autograd_gradient,
        hessian: Any = _gradients.autograd_hessian, buffers: Parameters | None = None,
    ) -> Support:  # fmt: skip
        """Support set of a task in training."""
        buffers = self.network.buffers() if buffers is None else dict(buffers)
        return Support(x, y, self.inner_steps, self.order, self, buffers, begin, differentiate, hessian)

    def support_at_meta_test(self, x: Tensor, y: Tensor) -> Support:
        """Support set of a task at meta-test."""
        support = self.support(x, y, ignore)
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


def ignore(part: Any) -> None:
    """Do nothing: no homogenizer acts at meta-test, or before rows that are computed at once."""
