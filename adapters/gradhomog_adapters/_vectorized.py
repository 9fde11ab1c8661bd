"""Rows of all tasks of a batch at once: `torch.func.vmap` of the row of one task, optionally compiled."""

import warnings
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradhomog import OptionError, TaskBatch, TaskRow
from gradhomog_adapters._network import NO_CHECKPOINTS, Parameters, raise_for_checkpoint

# Multiplications for one support set; above, arithmetic takes longer than calling the operations.
MAX_SMALL_WORK = 2e6

# Layers that are bound by arithmetic, or whose batching rules copy.
SLOW_UNDER_VMAP = (nn.modules.conv._ConvNd, nn.RNNBase, nn.MultiheadAttention)


class VectorizedRows:
    """Computes the rows of a batch with one `vmap`.

    `vmap` is the outermost transform, never the innermost: with affine batch, layer or instance normalization, the
    derivative of a `vmap` is wrong without an error (PyTorch 2.13; see `tests/adapters/test_engines.py`). Each task
    receives its own view of the parameters, so that the state of an inner optimizer is batched too. `learner` is a
    `FewShotLearner`, whose module imports this one.
    """

    def __init__(self) -> None:
        self._compiled: Callable[..., Any] | None = None
        self._vmap_failed = False
        self._unused: dict[tuple[str, ...], Set[str]] = {}

    def __getstate__(self) -> dict[str, Any]:  # compiled code cannot be copied or pickled
        return {**vars(self), "_compiled": None}

    def try_rows(self, learner: Any, batch: TaskBatch) -> TaskRow | None:
        """Return the rows, or None if the loop must compute them; `learner.prepared` is called for the rows only.

        Raises:
            OptionError: this engine is required, and a homogenizer acts before rows, on one task after the other, or
                PyTorch cannot vectorize the network, the loss or the inner optimizer.
        """
        execution = learner.execution
        required = execution.engine == "vmap" or (bool(execution.compile) and execution.engine == "auto")
        if not required and (execution.engine == "loop" or execution.recompute or self._vmap_failed or len(batch) == 1):
            return None
        acting = learner.homogenizers.requirements
        early = dict.fromkeys(m.selector for m in (*acting.attaching, *acting.transforming, *acting.beginning))
        if required:
            if early:
                raise OptionError(
                    f"engine='vmap' runs all tasks at once, but {' and '.join(early)} requires one task after the "
                    "other. Use engine='loop' or 'auto'."
                )
        elif early or not prefers_vmap(learner, batch):
            return None
        try:
            return self.rows(learner, batch)
        except RuntimeError as error:
            # A value is read, or a batching rule is missing: use the loop, which works or raises the cause.
            if required:
                learner.task_row(batch[0], batch.keys[0])  # raises if the error is not that of the engine
                loop = "engine='loop' with compile=False" if execution.compile else "engine='loop' or 'auto'"
                raise OptionError(
                    "engine='vmap': PyTorch cannot run the encoder, the head, the loss or the inner optimizer for all "
                    f"tasks at once: {str(error).partition('. ')[0].rstrip('.')}. Use {loop}."
                ) from error
            self._vmap_failed = True
            return None

    def rows(self, learner: Any, batch: TaskBatch) -> TaskRow:
        """Rows of a batch; see `Learner.batch_row`.

        Raises:
            OptionError: the network contains an activation checkpoint; `compile` is set, and PyTorch cannot compile the
                rows of a task into one graph.
        """
        batch, tasks = learner.prepared(batch), len(batch)
        parameters = {n: p.detach().expand(tasks, *p.shape) for n, p in learner.live_parameters.items()}
        # Copies, so that a task does not modify the buffers of another.
        buffers = {n: b.expand(tasks, *b.shape).clone() for n, b in learner.network.buffers().items()}
        arguments = (parameters, buffers, batch.support_x, batch.support_y, batch.query_x, batch.query_y)
        function, names = self._function(learner), tuple(learner.live_parameters)
        if names not in self._unused:
            self._unused[names] = unused_parameters(learner, batch)
        # Derivatives are taken inside `vmap`; no graph is needed outside.
        compile = learner.execution.compile
        with torch.no_grad(), explain_compile_errors(compile) if compile else nullcontext(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")  # addcmul_ of TorchOpt's Adam
            gradients, loss, outputs, features, feature_grads = function(*arguments)
        gradients = {name: rows for name, rows in gradients.items() if name not in self._unused[names] or rows.any()}
        return TaskRow(loss, gradients, outputs, [features], [feature_grads])

    def _function(self, learner: Any) -> Callable[..., Any]:
        if self._compiled is not None:
            return self._compiled

        def row_of_task(parameters: Parameters, buffers: Parameters, *tensors: Tensor) -> Any:
            row = learner.func_row(parameters, buffers, *tensors)
            gradients = {name: g for name, g in row.gradients.items() if g is not None}
            return gradients, row.loss, row.outputs, row.features[0], row.feature_grads[0]

        vectorized: Callable[..., Any] = torch.func.vmap(row_of_task, randomness="different")
        if not (compile := learner.execution.compile):
            return vectorized

        def function(*arguments: Any) -> Any:
            return vectorized(*arguments)

        # PyTorch counts recompilations by code object; one object for all learners would reach its limit.
        function.__code__ = function.__code__.replace()
        backend = compile if isinstance(compile, str) else "inductor"
        # Without `fullgraph`, one operation that cannot be traced makes PyTorch run everything uncompiled, in silence.
        self._compiled = torch.compile(function, backend=backend, fullgraph=True)
        return self._compiled


@contextmanager
def explain_compile_errors(option: bool | str) -> Iterator[None]:
    """Raise OptionError for activation checkpoints and, with the place in the code, if PyTorch cannot compile."""
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks(NO_CHECKPOINTS):
            yield
    except Exception as error:
        raise_for_checkpoint(error)
        if not type(error).__module__.startswith(("torch._dynamo.", "torch._inductor.")):
            raise
        lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
        place = next((f" ({line})" for line in reversed(lines) if line.startswith('File "')), "")
        raise OptionError(
            f"compile={option!r}: PyTorch cannot compile the rows of a task into one graph: "
            f"{lines[0].rstrip('.')}{place}. Encoder, head, loss and inner optimizer must consist of operations that "
            "torch.compile(fullgraph=True) traces, and the shapes of batches must be few, because each is compiled. "
            "Change the code at this place, or use compile=False."
        ) from error


def unused_parameters(learner: Any, batch: TaskBatch) -> Set[str]:
    """Names of the parameters that the losses do not depend on, for which `torch.func` returns zeros.

    Computed by the loop, for one task: under `vmap` the operations cannot depend on the task.
    """
    devices = {tensor.device for tensor in learner.live_parameters.values() if tensor.device.type == "cuda"}
    with torch.random.fork_rng(list(devices)), torch.enable_grad():
        row = learner.autograd_row(batch[0], batch.keys[0])
    return {name for name in learner.live_parameters if row.gradients.get(name) is None}


def prefers_vmap(learner: Any, batch: TaskBatch) -> bool:
    """True if the vectorized engine is expected to be faster and its rows do not differ from those of the loop.

    It is faster if calling operations takes longer than their arithmetic.
    """
    parts = [*learner.encoder.modules(), *learner.head.modules()]
    if any(isinstance(part, SLOW_UNDER_VMAP) for part in parts):
        return False
    if any(isinstance(part, nn.modules.dropout._DropoutNd) and part.p for part in parts):
        return False  # its masks would depend on the engine, and the engine on the homogenizers that are compared
    if any(part._buffers and not isinstance(part, _BatchNorm) for part in parts):
        return False  # writes into buffers within a derivative cannot be separated by task
    weights = sum(p.numel() for p in learner.live_parameters.values())
    return bool(weights * batch.support_x.shape[1] <= MAX_SMALL_WORK)
