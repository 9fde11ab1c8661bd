"""The rows of all tasks of a batch at once: `vmap` of the row by `torch.func`, compiled if required."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradhomog import OptionError, TaskBatch, TaskRow
from gradhomog_adapters._network.functional import Parameters
from gradhomog_adapters._rows.gradients import gradient_by_transforms, hessian_by_transforms
from gradhomog_adapters._rows.sets import Path, Query, Rows

# Above this many multiplications for a task's support set arithmetic outweighs the cost of calling operations.
SMALL = 2e6

# Bound by arithmetic, or copied by the batching rules.
SLOWER = (nn.modules.conv._ConvNd, nn.RNNBase, nn.MultiheadAttention)


class RowsAtOnce:
    """Forms the rows of a batch under one `vmap`.

    `vmap` is the outermost transform, never the innermost: with affine batch, layer or instance normalization, the
    derivative of a `vmap` is wrong without an error (PyTorch 2.13; `tests/adapters/test_engines.py` shows it). Each
    task receives the parameters as a view of its own, so that what an inner optimizer derives from them is batched too.
    """

    def __init__(self) -> None:
        self._compiled: Callable[..., Any] | None = None
        self._refused = False

    def __getstate__(self) -> dict[str, Any]:  # compiled code is neither copied nor saved
        return {"_compiled": None, "_refused": self._refused}

    def try_rows(self, learner: Rows, batch: TaskBatch) -> TaskRow | None:
        """The rows; None if the loop has to form them.

        Raises:
            OptionError: this engine is required, and a homogenizer acts before rows, on one task after the other.
            RuntimeError: it is required, and PyTorch cannot vectorize the network, the loss or the inner optimizer.
        """
        execution = learner.execution
        required = execution.engine == "vmap" or (bool(execution.compile) and execution.engine == "auto")
        if not required and (execution.engine == "loop" or execution.recompute or self._refused or len(batch) == 1):
            return None
        acting = [m.selector for m in learner.homogenizers.members if m.before_rows or m.homogenizer.overrides("begin")]
        if required:
            if acting:
                raise OptionError(
                    f"engine='vmap' runs all tasks at once, but {' and '.join(acting)} must be told of one after the "
                    "other. Use engine='loop' or 'auto'."
                )
            return self.rows(learner, batch)
        if acting or not small(learner, batch):
            return None
        try:
            return self.rows(learner, batch)
        except RuntimeError:  # a value is read, or a batching rule is missing: the loop works, or raises the reason
            self._refused = True
            return None

    def rows(self, learner: Rows, batch: TaskBatch) -> TaskRow:
        """As `Learner.batch_row`."""
        tasks = len(batch)
        parameters = {n: p.detach().expand(tasks, *p.shape) for n, p in learner.live_parameters.items()}
        # Copies: what a task writes into its buffers must not reach another task.
        buffers = {n: b.expand(tasks, *b.shape).clone() for n, b in learner.network.buffers().items()}
        arguments = (parameters, buffers, batch.support_x, batch.support_y, batch.query_x, batch.query_y)
        function = self._function(learner)
        with torch.no_grad(), warnings.catch_warnings():  # derivatives are taken inside; nothing is recorded outside
            warnings.filterwarnings("ignore", message="There is a performance drop")  # addcmul_ of TorchOpt's Adam
            gradients, loss, outputs, features, feature_grads = function(*arguments)
        return TaskRow(loss, gradients, outputs, [features], [feature_grads])

    def _function(self, learner: Rows) -> Callable[..., Any]:
        if self._compiled is not None:
            return self._compiled

        def one(parameters: Parameters, buffers: Parameters, *tensors: Tensor) -> Any:
            row = row_by_transforms(learner, parameters, buffers, *tensors)
            gradients = {name: g for name, g in row.gradients.items() if g is not None}
            return gradients, row.loss, row.outputs, row.features[0], row.feature_grads[0]

        function: Callable[..., Any] = torch.func.vmap(one, randomness="different")
        if compile := learner.execution.compile:
            backend = compile if isinstance(compile, str) else "inductor"
            self._compiled = function = torch.compile(function, backend=backend)
        return function


def row_by_transforms(
    learner: Rows, parameters: Parameters, buffers: Parameters, support_x: Tensor, support_y: Tensor,
    query_x: Tensor, query_y: Tensor,
) -> TaskRow:  # fmt: skip
    """The row of one task, as `row_on_graph` forms it, by `torch.func`: `vjp` up to the query features, and `grad` from
    there. No homogenizer acts in between."""
    support = learner.support(support_x, support_y, _ignore, gradient_by_transforms, hessian_by_transforms, buffers)

    def query_row(path: Path, at: Parameters) -> TaskRow:
        def lead(at: dict[str, Tensor]) -> Any:
            points = path(at, support)
            statistics = [learner.support_statistics(point, support) for point in points]
            pairs = zip(points, statistics, strict=True)
            queries = [learner.query(point, support, query_x, query_y, known) for point, known in pairs]
            return points, statistics, [query.features for query in queries]

        def score(points: Any, statistics: Any, features: Any) -> tuple[Tensor, Any]:
            losses = []
            for point, known, each in zip(points, statistics, features, strict=True):
                loss, outputs = learner.query_loss(point, Query(each, query_y, support, known))
                losses.append(loss)
            return losses[0] if len(losses) == 1 else learner.total(losses), outputs

        led: Any = torch.func.vjp(lead, dict(at)) if at else (lead({}), lambda gradients: ({},))
        by = (0, 1, 2) if at else (2,)
        scored: Any = torch.func.grad_and_value(score, argnums=by, has_aux=True)(*led[0])
        gradients, (loss, outputs) = scored
        features, by_features = led[0][-1], gradients[-1]
        return TaskRow(loss, led[1](gradients)[0], outputs, [features[-1]], [sum(by_features[1:], by_features[0])])

    return learner.row(parameters, support, query_row)


def _ignore(part: Any) -> None:
    """No homogenizer is informed: none acts before rows."""


def small(learner: Rows, batch: TaskBatch) -> bool:
    """Whether calling operations costs more than their arithmetic, and everything in the network can be vectorized."""
    parts = [*learner.encoder.modules(), *learner.head.modules()]
    if any(isinstance(part, SLOWER) for part in parts):
        return False
    if any(isinstance(part, nn.modules.dropout._DropoutNd) and part.p for part in parts):
        return False  # its numbers would depend on the engine, and so on the homogenizers that are compared
    if any(part._buffers and not isinstance(part, _BatchNorm) for part in parts):
        return False  # what is written into buffers within a derivative cannot be told apart by task
    weights = sum(p.numel() for p in learner.live_parameters.values())
    return weights * batch.support_x.shape[1] <= SMALL
