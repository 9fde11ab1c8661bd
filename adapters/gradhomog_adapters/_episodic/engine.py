"""The vectorized engine: the rows of all tasks at once, `vmap` outermost, compiled if asked for."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradhomog import OptionError, Pipeline, TaskBatch, TaskRow
from gradhomog_adapters._episodic.calculus import ByTransforms
from gradhomog_adapters._episodic.episode import Episode
from gradhomog_adapters._episodic.network import Parameters

Engine = Literal["auto", "loop", "vmap"]
Compile = bool | str
Autocast = Literal["bfloat16"] | None

# Above this many multiplications for a task's support set arithmetic outweighs the cost of calling operations.
SMALL = 2e6

# Bound by arithmetic, or copied by the batching rules.
SLOWER = (nn.modules.conv._ConvNd, nn.RNNBase, nn.MultiheadAttention)


class Episodic(Protocol):
    """A learner whose rows of several tasks can be computed under one `vmap`."""

    engine: Engine
    homogenizers: Pipeline
    encoder: nn.Module
    head: nn.Module

    @property
    def network(self) -> Any: ...

    def parameters(self) -> list[nn.Parameter]: ...
    def meta_parameters(self) -> Any: ...
    def row(self, parameters: Any, episode: Any) -> Any: ...


def check_engine(engine: Engine, compile: Compile) -> None:
    """Raises OptionError."""
    if engine not in ("auto", "loop", "vmap"):
        raise OptionError(
            f"`engine` must be 'auto', 'loop' or 'vmap' (of gradients: the gradient of a vmap is wrong for several "
            f"normalizations); got {engine!r}."
        )
    if not isinstance(compile, bool) and compile not in torch.compiler.list_backends(exclude_tags=()):
        backends = ", ".join(torch.compiler.list_backends(exclude_tags=()))
        raise OptionError(f"`compile` must be true, false or a backend of torch.compile ({backends}); got {compile!r}.")
    if compile and engine == "loop":
        raise OptionError(
            f"`compile` is of the vectorized engine; got compile={compile!r} with engine='loop'. Use 'vmap'."
        )


def check_autocast(autocast: Autocast) -> None:
    """Raises OptionError."""
    if autocast not in (None, "bfloat16"):
        raise OptionError(f"`autocast` must be None or 'bfloat16' (float16 has no gradients here); got {autocast!r}.")


class Vectorized:
    """Runs `learner.row` for all tasks of a batch under one `vmap`.

    Parameters are given to each task as a view of its own: what an inner optimizer derives from them is then batched
    too. Under `vmap` derivatives are those of `torch.func`, inside; nothing is differentiated outside.
    """

    def __init__(self, compile: Compile) -> None:
        self.compile = compile
        self._compiled: Callable[..., Any] | None = None
        self._refused = False

    def __getstate__(self) -> dict[str, Any]:  # compiled code is neither copied nor saved
        return {"compile": self.compile, "_compiled": None, "_refused": self._refused}

    def try_rows(self, learner: Episodic, batch: TaskBatch) -> TaskRow | None:
        """The rows; None if the loop has to form them.

        Raises:
            OptionError: this engine was asked for, and a homogenizer acts before rows, on one task after the other.
            RuntimeError: it was asked for, and PyTorch cannot vectorize the network, the loss or the inner optimizer.
        """
        if not self._serves(learner, batch):
            return None
        if self._asked(learner):
            return self.rows(learner, batch)
        try:
            return self.rows(learner, batch)
        except RuntimeError:  # a value is asked for, or a batching rule is missing: the loop knows better, or says why
            self._refused = True
            return None

    def _asked(self, learner: Episodic) -> bool:
        return learner.engine == "vmap" or (bool(self.compile) and learner.engine == "auto")

    def _serves(self, learner: Episodic, batch: TaskBatch) -> bool:
        acting = [
            member.selector
            for member in learner.homogenizers.members
            if member.before_rows or member.homogenizer.overrides("begin")
        ]
        if self._asked(learner):
            if acting:
                raise OptionError(
                    f"engine='vmap' runs all tasks at once, but {' and '.join(acting)} must be told of one after the "
                    "other. Use engine='loop' or 'auto'."
                )
            return True
        if learner.engine == "loop" or self._refused or acting or len(batch) == 1:
            return False
        return small(learner, batch)

    def rows(self, learner: Episodic, batch: TaskBatch) -> TaskRow:
        """As `Learner.batch_row`."""
        tasks = len(batch)
        parameters = {n: p.detach().expand(tasks, *p.shape) for n, p in learner.meta_parameters().items()}
        # Copies: what a task writes into its buffers must not reach another one's.
        buffers = {n: b.expand(tasks, *b.shape).clone() for n, b in learner.network.buffers().items()}
        arguments = (parameters, buffers, batch.support_x, batch.support_y, batch.query_x, batch.query_y)
        function = self._function(learner)
        with torch.no_grad(), warnings.catch_warnings():  # derivatives are taken inside; nothing is recorded outside
            warnings.filterwarnings("ignore", message="There is a performance drop")  # addcmul_ of TorchOpt's Adam
            gradients, *others = function(*arguments)
        loss, outputs, features, cotangents = others
        return TaskRow(loss, gradients, outputs, features, cotangents)

    def _function(self, learner: Episodic) -> Callable[..., Any]:
        if self._compiled is not None:
            return self._compiled

        def one(
            parameters: Parameters, buffers: Parameters, support_x: Tensor, support_y: Tensor, query_x: Tensor,
            query_y: Tensor,
        ) -> Any:  # fmt: skip
            episode = Episode(support_x, support_y, query_x, query_y, buffers, ByTransforms())
            row = learner.row(parameters, episode)
            gradients = {name: g for name, g in row.gradients.items() if g is not None}
            return gradients, row.loss, row.outputs, list(row.features), list(row.feature_grads)

        function = torch.func.vmap(one, randomness="different")
        if self.compile:
            backend = self.compile if isinstance(self.compile, str) else "inductor"
            self._compiled = function = torch.compile(function, backend=backend)
        return function


def small(learner: Episodic, batch: TaskBatch) -> bool:
    """Whether calling operations costs more than their arithmetic, and all that is in the network can be vectorized."""
    parts = [*learner.encoder.modules(), *learner.head.modules()]
    if any(isinstance(part, SLOWER) for part in parts):
        return False
    if any(isinstance(part, nn.modules.dropout._DropoutNd) and part.p for part in parts):
        return False  # its numbers would depend on the engine, and so on the homogenizers that are compared
    if any(part._buffers and not isinstance(part, _BatchNorm) for part in parts):
        return False  # what is written into buffers within a derivative cannot be told apart by task
    weights = sum(p.numel() for p in learner.parameters())
    return weights * batch.support_x.shape[1] <= SMALL
