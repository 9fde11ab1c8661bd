"""The inner loop, and where the network stands after some of its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog_adapters._episodic.episode import Episode
from gradhomog_adapters._episodic.network import Network, Parameters
from gradhomog_adapters._inner_loop.optimizer import Descent, InnerOptimizer
from gradhomog_adapters._inner_loop.support import divided
from gradhomog_adapters._mamlpp.own import OwnByStep
from gradhomog_adapters._mamlpp.phase import Order
from gradhomog_adapters._mamlpp.rates import advance
from gradhomog_adapters._mamlpp.running import Running

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class InnerLoop:
    """What an inner step needs to know of its learner.

    Attributes:
        network, make_inner: the network, and what gives each task its inner optimizer.
        adapted: the names of the parameters that it changes.
        learn_rates: whether its updates are multiplied by learnt rates.
        by_step, running: what differs from step to step: what is learnt, and running statistics.
    """

    network: Network
    make_inner: InnerOptimizer
    adapted: Sequence[str]
    learn_rates: bool
    by_step: OwnByStep
    running: Running

    def points(
        self, meta: Parameters, episode: Episode, loss: Loss, after: Sequence[int], order: Order
    ) -> list[Parameters]:
        """All parameters of the network after so many inner steps, with scales and shifts of the last of them.

        Args:
            meta: all that is learnt.
            loss: of outputs and targets.
            after: rising numbers of inner steps.
            order: what is differentiated.
        """
        start, others = divided(meta, self.adapted)
        descent = Descent.start(self.make_inner(), start)
        episode.begin("support")
        found: list[Parameters] = []
        for k in range(after[-1] + 1):
            if k in after:
                found.append({**others, **descent.parameters, **self.by_step.affine(meta, k - 1)})
            if k < after[-1]:
                factors = self.by_step.rates(meta, list(start), k) if self.learn_rates else None
                fixed = {**others, **self.by_step.affine(meta, k)}
                here = self.running.episode(episode, self.by_step.last_known(k))
                descent = self._step(descent, fixed, factors, here, loss, order)
        return found

    def _step(
        self, descent: Descent, fixed: Parameters, factors: Parameters | None, episode: Episode, loss: Loss,
        order: Order,
    ) -> Descent:  # fmt: skip
        def support_loss(parameters: dict[str, Tensor]) -> Tensor:
            outputs = self.network.outputs({**fixed, **parameters}, episode.buffers, episode.support_x)
            return loss(outputs, episode.support_y)

        variables = descent.parameters if order == "second" else episode.calculus.leaf(descent.parameters)
        slopes = episode.calculus.gradient(support_loss, variables, order == "second")
        with torch.set_grad_enabled(order != "none"):
            return advance(descent, slopes, factors, constant=order != "second")
