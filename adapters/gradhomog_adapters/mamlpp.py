"""MAML++: MAML with learned rates, a multi-step loss, normalization by step, and annealings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Literal, Unpack, cast

import torch
from torch import Tensor, nn

from gradhomog import LearnerSpec, OptionError, StepReport, Task, TaskBatch, hookimpl
from gradhomog_adapters._inner_optimizer import Inner, resolve
from gradhomog_adapters._mamlpp.by_step import ByStep, affine, last_known, rates
from gradhomog_adapters._mamlpp.multi_step import Phase
from gradhomog_adapters._mamlpp.schedule import Count, annealed, cosine
from gradhomog_adapters._mamlpp.statistics import Running, statistics
from gradhomog_adapters._network.functional import Parameters
from gradhomog_adapters._network.norm import Norm, Statistics
from gradhomog_adapters.execution import Execution, ExecutionOptions, ExecutionOptionsExceptNorm
from gradhomog_adapters.few_shot import Query, Support
from gradhomog_adapters.maml import MAML

__all__ = ["MAMLPP", "cosine", "gradhomog_learner"]


class MAMLPP(MAML):
    """MAML, made to train stably by five parts, each of which can be turned off; all off, it is MAML bit for bit.

    θ⁰ = θ,  θ_l^{k+1} = θ_l^k − α_{l,k} ∇_l L_S(θ^k; γ_k, β_k),  row = ∇ Σ_k v_k L_Q(θ^{k+1}; γ_k, β_k),
    by θ, by the rates α_{l,k} and by the scales and shifts γ_k, β_k of batch normalization.

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        inner, inner_lr: the inner optimizer and its rate, as of `MAML`; with `learn_rates` a name, and the rate that
            all α_{l,k} start at (the paper's: 0.1 for Omniglot, 0.01 for miniImageNet).
        inner_steps: K ≥ 0 while training.
        test_steps: at meta-test; K by default. Steps beyond K have the rates and normalization of the last.
        adapt: glob pattern, or several, over the parameters that the inner loop changes.
        learn_rates: learn a rate α_{l,k} for each adapted tensor l and step k: parameters `learner.rates.<name>` `[K]`.
        step_norm: learn γ_k, β_k of every batch normalization for each step k, in the outer loop only: parameters
            `learner.norm.<name>` `[K, channels]`, in place of the layer's own, which are then neither learnt nor used.
            A network without batch normalization has none, and nothing else changes.
        multi_step_steps: meta-steps over which the loss goes from that after every inner step, v_k = 1/K, to that after
            the last one: v_k = max(1 − e, 0.03)/K for k < K − 1 with e the share of them that is done, the rest for the
            last; from then on only the last is computed. 0: only the last from the start. The paper: 10 epochs of 500
            steps (Omniglot) or 15 (miniImageNet) of 100 or 150.
        first_order_steps: so many meta-steps without second derivatives: inner gradients are constants, and a row is
            still the derivative by rates, scales and shifts (of the first-order kind for θ: FOMAML). The paper: 50
            epochs, 25 000; the authors' configurations: none.
        anneal_steps: meta-steps over which the rate of an outer optimizer of `torch.optim` falls on a cosine to
            `final_outer_lr`, where it stays; from its own rate, kept in its groups as `initial_lr`. 0: never set. The
            paper: all steps, 50 000 (Omniglot) to 75 000. For optimizers of TorchOpt see `cosine`.
        final_outer_lr: ≥ 0. The authors' configurations: 1e-5 for Omniglot.
        norm: `"batch"`, `"support"`, `"frozen"`, see `Execution`; or `"running"`: while training as `"batch"`, and at
            meta-test with the statistics of each step, averaged while training (inductive: queries can come one by
            one). They are recorded in `step`, without homogenizers, by one more inner loop of first order per task:
            buffers `learner.statistics.<name>` `[K + 1, ...]`, of each inner step and of the query set after the last.
        execution, engine, compile, autocast, recompute: see `Execution`.

    The number of steps done is state, `learner.count.done`: a learner that is loaded goes on where it was. Multi-step
    losses are those of the row and of the report: Σ v_k L_Q; outputs and features are those after the last step, and
    gradients w.r.t. features are sums over the passes. An ensemble of the best checkpoints: `gradhomog.Ensemble`.
    The network alone (`learner.encoder`) keeps the scales and shifts it came with. Rows are exact, except during
    `first_order_steps`. Cost: MAML's, and one query pass more for each inner step while the multi-step loss lasts.

    Raises:
        OptionError: an option that cannot be used, named; by `step` with `anneal_steps`, an outer optimizer whose rate
            cannot be set, or is below `final_outer_lr`.

    Source: Antoniou et al. 2019, arXiv 1810.09502, section 4.

    Deviations from the paper: schedules count meta-steps, not epochs, and the multi-step loss moves with every one.
    From the authors' code (HowToTrainYourMAMLPytorch): (1) `inner_lr` is what rates start at: theirs reads another
    option than its configurations set, and starts at 0.1; (2) K rates per tensor: theirs has K + 1, the last never
    used; (3) nothing writes the network's running statistics: theirs saves them before an evaluation by a copy that
    shares their memory, so that restoring them does nothing; (4) theirs records statistics by step and never uses
    them: `"running"` does, and keeps those of the query set after the last step apart, as they are of other parameters;
    (5) the cosine falls when it is asked for: in their configuration for miniImageNet both its ends are the same; (6)
    the paper's first-order phase is an option: their configurations turn it off; (7) `test_steps` counts: theirs
    predicts after as many steps as in training, whatever it is told; (8) no clamping of meta-gradients at ±10, which
    theirs does for miniImageNet.

    >>> import torch
    >>> from gradhomog import TaskBatch
    >>> _ = torch.manual_seed(0)
    >>> encoder = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh())
    >>> learner = MAMLPP(encoder, torch.nn.Linear(8, 1), inner_steps=2, multi_step_steps=100)
    >>> x = torch.linspace(-1, 1, 5)[:, None].repeat(3, 1, 1)
    >>> report = learner.step(TaskBatch(x, x.sin(), x, x.sin()), torch.optim.Adam(learner.parameters(), lr=1e-3))
    >>> [name for name in learner.named_parameters() if name.startswith("learner.")]  # doctest: +NORMALIZE_WHITESPACE
    ['learner.rates.encoder.0.weight', 'learner.rates.encoder.0.bias', 'learner.rates.head.weight',
     'learner.rates.head.bias', 'learner.norm.encoder.1.weight', 'learner.norm.encoder.1.bias']
    """

    _by_step: ByStep | None = None  # the base class asks for names before it is made

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        inner: Inner = "sgd",
        inner_lr: float = 0.01,
        inner_steps: int = 5,
        test_steps: int | None = None,
        adapt: str | Sequence[str] = "*",
        learn_rates: bool = True,
        step_norm: bool = True,
        multi_step_steps: int = 5000,
        first_order_steps: int = 0,
        anneal_steps: int = 0,
        final_outer_lr: float = 1e-5,
        norm: Norm | Literal["running"] = "batch",
        loss: Any = None,
        execution: Execution | None = None,
        **keywords: Unpack[ExecutionOptionsExceptNorm],
    ) -> None:
        self._records = norm == "running"
        options = cast(ExecutionOptions, dict(keywords))
        if norm != "running" and (execution is None or norm != "batch"):
            options["norm"] = norm
        if norm == "running" and execution is not None and execution.norm != "batch":
            raise OptionError(f"`norm` 'running' trains with that of each batch; `execution` has {execution.norm!r}.")
        super().__init__(
            encoder, head, homogenizers, inner=inner, inner_lr=inner_lr, inner_steps=inner_steps,
            test_steps=test_steps, adapt=adapt, loss=loss, execution=Execution.of(execution, options),
        )  # fmt: skip
        self.multi_step_steps = _count("multi_step_steps", multi_step_steps)
        self.first_order_steps = _count("first_order_steps", first_order_steps)
        self.anneal_steps = _count("anneal_steps", anneal_steps)
        if not 0 <= final_outer_lr < math.inf:
            raise OptionError(f"`final_outer_lr` must not be negative, and finite; got {final_outer_lr!r}.")
        self.final_outer_lr = final_outer_lr
        self.learn_rates = learn_rates
        if learn_rates:
            if not isinstance(inner, str):
                raise OptionError(
                    f"`inner` must be a name, whose rates are learnt; got {inner!r}, which has rates of its own. Use a "
                    "name, or learn_rates=False."
                )
            self.inner = resolve(inner, 1.0)  # its updates are multiplied by the rates
        self._by_step = own = ByStep(self.own, self.network, inner_steps, step_norm)
        self.adapted = [name for name in self.adapted if name not in own.affine_names]
        if not self.adapted:
            raise OptionError(
                "`adapt` must match more than scales and shifts of batch normalization, which step_norm=True learns in "
                f"the outer loop; got {adapt!r}."
            )
        self._running = Running(self.network)
        self.learn("count", Count())
        if learn_rates:
            self.learn("rates", rates(self.adapted, inner_steps, inner_lr))
        if own.affine_names:
            self.learn("norm", affine(self.network, own.affine_names, inner_steps))
        if self._records:
            self.learn("statistics", statistics(self.network, inner_steps + 1))
        self._phase = self._current_phase()

    # -- θ^{k+1} = θ^k − α_k ∇L_S(θ^k; γ_k, β_k) ---------------------------------------------------------------------

    def support_loss(self, parameters: Parameters, support: Support, k: int, features: Tensor | None) -> Tensor:
        here = self._running.at_step(support, last_known(k, self.inner_steps))
        return here.loss({**parameters, **self.by_step.affine(parameters, k)})

    def scaled(self, updates: dict[str, Tensor], theta: Parameters, held: Parameters, k: int) -> dict[str, Tensor]:
        if not self.learn_rates:
            return updates
        alpha = self.by_step.rates(held, list(updates), k)
        return {name: alpha[name] * update for name, update in updates.items()}

    def shared_features(self, start: Parameters, others: Parameters, support: Support) -> None:
        """None: normalization differs from step to step."""

    # -- Σ_k v_k L_Q(θ^{k+1}; γ_k, β_k) ------------------------------------------------------------------------------

    def path(self, parameters: Parameters, support: Support) -> list[Parameters]:
        points = enumerate(self.inner_loop(parameters, support))
        return [{**p, **self.by_step.affine(p, k - 1)} for k, p in points if k in self._phase.passes]

    def total(self, losses: Sequence[Tensor]) -> Tensor:
        return (torch.stack(list(losses)) * self._phase.shares).sum()

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        point = super().adapt(parameters, support)
        return {**point, **self.by_step.affine(point, support.steps - 1)}

    def query(self, point: Parameters, support: Support, x: Tensor, y: Tensor | None, statistics: Statistics) -> Query:
        here = self._running.at_step(support, min(support.steps, self.inner_steps))
        return super().query(point, here, x, y, statistics)

    # -- what changes from step to step ------------------------------------------------------------------------------

    def named_parameters(self) -> dict[str, nn.Parameter]:
        found = super().named_parameters()
        return self._by_step.without_replaced(found) if self._by_step else found

    @property
    def by_step(self) -> ByStep:
        assert self._by_step is not None
        return self._by_step

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(super().mode(training))
            if training:
                self._phase = self._current_phase()
                self.order = self._phase.order
            elif self._records:
                stack.enter_context(self._running.reading(dict(self.own["statistics"].named_buffers())))
            yield

    def step(self, batch: TaskBatch | Sequence[Task], outer: Any) -> StepReport:
        batch = batch if isinstance(batch, TaskBatch) else TaskBatch.stack(batch)
        with ExitStack() as stack:
            if self.anneal_steps:
                stack.enter_context(annealed(outer, self._done, self.anneal_steps, self.final_outer_lr))
            found = self._recorded(batch) if self._records else {}
            report = super().step(batch, outer)
        for name, buffer in found.items():
            self.own["statistics"].get_buffer(name).copy_(buffer)
        return report

    def on_step_end(self) -> None:
        self.own["count"].get_buffer("done").add_(1)

    @property
    def _done(self) -> int:
        return int(self.own["count"].get_buffer("done"))

    def _current_phase(self) -> Phase:
        like = next(iter(self.named_parameters().values()))
        return Phase.of(self._done, self.inner_steps, self.multi_step_steps, self.first_order_steps, like)

    def _recorded(self, batch: TaskBatch) -> dict[str, Tensor]:
        """The running statistics with those of a batch averaged in, adapted to as at meta-test."""
        known = dict(self.own["statistics"].named_buffers())
        for task in batch:
            with super().mode(training=False), self._running.recording(known) as found:
                support = self.support_at_meta_test(task.support_x, task.support_y)
                self.outputs_at_meta_test(replace(support, steps=self.inner_steps), task.query_x)
            if all(bool(torch.isfinite(buffer).all()) for buffer in found.values()):  # a task with NaN may be dropped
                known = found
        return known


def _count(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise OptionError(f"`{name}` must be a number of meta-steps, an integer and not negative; got {value!r}.")
    return value


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=MAMLPP,
        summary="MAML with learned rates, a multi-step loss, normalization by step, and annealings",
        reference="Antoniou et al. 2019, arXiv 1810.09502",
        traits={"exact_rows"},
    )
