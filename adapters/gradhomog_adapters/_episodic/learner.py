"""What learners of few-shot tasks share: a network used as a function, and two engines that turn tasks into rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog import Learner, OptionError, Task, TaskBatch, TaskRow
from gradhomog_adapters._episodic.calculus import OnGraph
from gradhomog_adapters._episodic.engine import Autocast, Compile, Engine, Vectorized, check_autocast, check_engine
from gradhomog_adapters._episodic.episode import Episode
from gradhomog_adapters._episodic.network import Network, Parameters
from gradhomog_adapters._network import usable as _usable
from gradhomog_adapters._network.norm import Norm, Statistics, SupportStatistics, check_norm, policy
from gradhomog_adapters._network.twice import differentiable_twice


class Episodic(Learner):
    """A learner whose row is a pure function of the parameters and one task.

    A subclass says which (`row`), and what the network is at meta-test (`outputs`). It calls the network through
    `self.network`, takes derivatives through `episode.calculus`, and so runs under both engines.

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        norm: what batch normalization normalizes with: `"batch"`, `"support"` or `"frozen"`.
        engine: `"loop"`, one task after the other, each task's graph freed before the next is built; `"vmap"`, all
            tasks at once by `vmap(grad(task))`: up to tens of times faster for small networks, slower and hungrier for
            convolutions; `"auto"` chooses by the network, and takes the loop wherever a homogenizer acts before rows,
            or PyTorch cannot vectorize something.
        compile: compile the vectorized engine with `torch.compile`; takes half a minute at the first step of a shape;
            or the name of one of its backends.
        autocast: `"bfloat16"` runs the network's forward passes in that dtype where PyTorch deems it safe.
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any,
        loss: Any,
        norm: Norm = "batch",
        engine: Engine = "auto",
        compile: Compile = False,
        autocast: Autocast = None,
    ) -> None:
        super().__init__(encoder, head, homogenizers, loss)
        check_norm(norm)
        check_engine(engine, compile)
        check_autocast(autocast)
        _usable.check(encoder, head)
        self.norm, self.engine, self.autocast = norm, engine, autocast
        self.network = Network(encoder, head)
        self._normalizations = SupportStatistics(())
        self._vectorized = Vectorized(compile)

    # -- what a subclass says ----------------------------------------------------------------------------------------

    @abstractmethod
    def row(self, meta: Parameters, episode: Episode) -> TaskRow:
        """The row of a task, by the names of `meta` (left out or None: zero): a pure function of both arguments."""

    @abstractmethod
    def outputs(self, meta: Parameters, episode: Episode) -> Tensor:
        """Outputs for the query set at meta-test, as `Learner.adapted_outputs`."""

    # -- what a learner is -------------------------------------------------------------------------------------------

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(super().mode(training))
            self._normalizations = stack.enter_context(policy((self.encoder, self.head), self.norm))
            stack.enter_context(differentiable_twice((self.encoder, self.head)))
            if self.autocast is not None:
                device = next(iter(self.named_parameters().values())).device.type
                stack.enter_context(torch.autocast(device, getattr(torch, self.autocast)))
            yield

    def batch_row(self, batch: TaskBatch) -> TaskRow | None:
        return self._vectorized.try_rows(self, batch)

    def task_row(self, task: Task, key: Any) -> TaskRow:
        pipe = self.homogenizers
        episode = Episode(
            task.support_x, task.support_y, task.query_x, task.query_y, self.network.buffers(), OnGraph(),
            begin=lambda part: pipe.begin(key, part),
            transform=lambda features: pipe.transform(features[None], [key]),
        )  # fmt: skip
        return self.row(self.meta_parameters(), episode)

    def adapted_outputs(self, support_x: Tensor, support_y: Tensor, query_x: Tensor) -> Tensor:
        episode = Episode.unseen(support_x, support_y, query_x, self.network.buffers())
        return self.outputs(self.meta_parameters(), episode)

    # -- for subclasses ----------------------------------------------------------------------------------------------

    def loop_only(self, what: str) -> None:
        """Take one task after the other, as an option must; `what` says which, and its verb.

        Raises:
            OptionError: the vectorized engine, or compiled code, was asked for.
        """
        if self.engine == "vmap" or self._vectorized.compile:
            raise OptionError(f"{what} one task after the other. Use engine='loop', not compiled.")
        self.engine = "loop"

    def meta_parameters(self) -> dict[str, Tensor]:
        """All that is learnt: of encoder and head, and `learner.*`."""
        return dict(self.named_parameters())

    def statistics(self, parameters: Parameters, episode: Episode) -> Statistics:
        """What `norm="support"` normalizes queries with: the support set's statistics under some parameters."""
        if self.norm != "support" or not self._normalizations.layers:
            return {}
        with self._normalizations.record() as found:
            self.network.outputs(parameters, episode.buffers, episode.support_x)
        return found

    def encode(self, parameters: Parameters, episode: Episode, statistics: Statistics) -> Tensor:
        """Query features `[queries, features]`."""
        episode.begin("query")
        with self._normalizations.replay(statistics):
            return self.network.encode(parameters, episode.buffers, episode.query_x)

    def classify(self, parameters: Parameters, episode: Episode, statistics: Statistics, features: Tensor) -> Tensor:
        """Outputs `[queries, ways]` of query features."""
        with self._normalizations.replay(statistics):
            return self.network.classify(parameters, episode.buffers, features)
