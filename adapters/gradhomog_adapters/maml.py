"""MAML: differentiate the query loss through the inner loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog import LearnerSpec, TaskRow, hookimpl
from gradhomog_adapters._episodic.engine import Autocast, Compile, Engine
from gradhomog_adapters._episodic.episode import Episode
from gradhomog_adapters._episodic.learner import Episodic
from gradhomog_adapters._episodic.network import Parameters, choose, filled
from gradhomog_adapters._episodic.norm import Norm
from gradhomog_adapters._episodic.query import query_outputs, query_row
from gradhomog_adapters._inner_loop.optimizer import Descent, Inner, resolve
from gradhomog_adapters._inner_loop.steps import check_steps
from gradhomog_adapters._inner_loop.support import divided, encoded_once, support_loss
from gradhomog_adapters._inner_loop.sweep import Sweep, check_sweepable


class MAML(Episodic):
    """Learns an initialisation from which a few inner steps on a task's support set do well on its query set.

    ψ_i⁰ = ψ,  ψ_i^{k+1} = ψ_i^k − α ∇L_S(ψ_i^k)  (or any other TorchOpt transformation)
    row_i = ∇_ψ L_Q(ψ_i^K(ψ)) = Π_k (I − α H_k) ∇L_Q(ψ_i^K) for gradient descent;  first order: ∇L_Q(ψ_i^K)

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        inner: inner optimizer: `"sgd"`, `"momentum"`, `"adam"`, `"adamw"`, at `inner_lr`; or a
            TorchOpt transformation (`torchopt.sgd(lr=0.01)`, `torchopt.chain(...)`), or a function that makes one. Each
            task starts with a fresh state. Give Adam-like ones an `eps_root`: with TorchOpt's default of 0 an exactly
            zero gradient (a dead ReLU, a bias before batch normalization) makes meta-gradients NaN; its RMSProp has
            none.
        inner_lr: > 0, used when `inner` is a name.
        inner_steps: K ≥ 0 while training.
        test_steps: K at meta-test; as `inner_steps` by default.
        first_order: take the query gradient at the adapted point as the row (FOMAML); exact for every inner optimizer:
            weight decay and momentum do not leak second-order terms.
        adapt: glob pattern, or several, over the parameter names that the inner loop changes: `"*"`, `"head.*"`. The
            others are learnt in the outer loop only.
        norm: what batch normalization normalizes with: `"batch"`, `"support"` or `"frozen"`; see below.
        engine: `"loop"`, `"vmap"` (all tasks at once, for small networks) or `"auto"`.
        compile: compile the vectorized engine.
        autocast: `"bfloat16"` for forward passes; second-order rows lose accuracy (`docs/results/engines.md`).
        recompute: keep only the parameters of each inner step, and build its graph again on the way back: memory does
            not grow with K, for about 1.3 times the time. One task after the other.

    `norm`: `"batch"`, statistics of each batch, at meta-test too (the published results; transductive); `"support"`,
    queries with the support set's; `"frozen"`, the running statistics the network came with. None of them writes
    running statistics, and buffers are copied per task.

    The row of every parameter comes from one backward pass per task, which also gives the feature cotangents; each
    task's graph is freed before the next is built. The model is a function of named tensors: an exception leaves it
    untouched. Cost per task: K + 1 forward passes; second order about 2.2 times the arithmetic of first order.

    Source: Finn et al. 2017, arXiv 1703.03400, algorithm 1 and section 5.2 (first order).

    Deviations: (1) rows are formed per task and averaged, where the authors' code sums losses: the same up to rounding;
    (2) no clipping of meta-gradients at ±10, which the authors' code does for miniImageNet; (3) TorchOpt's `MetaSGD`
    and `MetaAdam` are not used: they adapt modules in place, share batch-norm buffers between tasks by default, and
    have no first-order mode; its functional transformations are.

    >>> import torch, torchopt
    >>> _ = torch.manual_seed(0)
    >>> learner = MAML(torch.nn.Linear(1, 8), torch.nn.Linear(8, 1), inner=torchopt.sgd(lr=0.01), inner_steps=2)
    >>> from gradhomog import TaskBatch
    >>> x = torch.linspace(-1, 1, 5)[:, None].repeat(3, 1, 1)
    >>> batch = TaskBatch(x, torch.sin(x), x, torch.sin(x))
    >>> report = learner.step(batch, torch.optim.Adam(learner.parameters(), lr=1e-3))
    >>> tuple(report.cosines.shape), tuple(report.weights.shape)
    ((3, 3), (3,))
    """

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
        first_order: bool = False,
        adapt: str | Sequence[str] = "*",
        norm: Norm = "batch",
        engine: Engine = "auto",
        compile: Compile = False,
        autocast: Autocast = None,
        recompute: bool = False,
        loss: Any = None,
    ) -> None:
        super().__init__(encoder, head, homogenizers, loss, norm, engine, compile, autocast)
        self.inner_steps, self.test_steps = check_steps(inner_steps, test_steps)
        self.first_order, self.recompute = first_order, recompute
        self._make_inner = resolve(inner, inner_lr)
        self._adapted = choose(list(self.network.parameters()), adapt, "adapt")
        if recompute:
            check_sweepable(self, self._make_inner)

    def row(self, meta: Parameters, episode: Episode) -> TaskRow:
        if self.first_order:  # by the adapted variables, and by the meta-parameters themselves where none was adapted
            at = episode.calculus.leaf(self.adapted(meta, episode, self.inner_steps, False))
            return query_row(self, episode, at, lambda point: point)
        if self.recompute:
            return self._swept_row(meta, episode)
        return query_row(self, episode, dict(meta), lambda at: self.adapted(at, episode, self.inner_steps, True))

    def outputs(self, meta: Parameters, episode: Episode) -> Tensor:
        with torch.enable_grad():  # the inner loop differentiates, whatever the caller's mode is
            point = self.adapted(meta, episode, self.test_steps, False)
        return query_outputs(self, episode, point)

    def adapted(self, meta: Parameters, episode: Episode, steps: int, differentiable: bool) -> dict[str, Tensor]:
        """All parameters, those of `adapt` after some inner steps on the support set."""
        start, others = divided(meta, self._adapted)
        episode.begin("support")
        if not start or not steps:
            return {**others, **start}
        descent = Descent.start(self._make_inner(), start)
        with torch.set_grad_enabled(differentiable):
            encoded = encoded_once(self, start, others, episode)
        for _ in range(steps):
            if not differentiable:
                descent = descent.at(episode.calculus.leaf(descent.parameters))
            descent = self._advance(episode, descent, others, differentiable, encoded)
        return {**others, **descent.parameters}

    def _advance(
        self, episode: Episode, at: Descent, others: Parameters, differentiable: bool, encoded: Tensor | None = None
    ) -> Descent:
        """One inner step, on support features if they are known already."""
        loss = support_loss(self, episode, others, encoded)
        slopes = episode.calculus.gradient(loss, at.parameters, differentiable and not self.first_order)
        return at.step(self.preconditioned(slopes, others), differentiable)

    def preconditioned(self, slopes: dict[str, Tensor], others: Parameters) -> dict[str, Tensor]:
        """What the inner optimizer is given in place of the support gradient."""
        return slopes

    def _swept_row(self, meta: Parameters, episode: Episode) -> TaskRow:
        """The same row, by a sweep backwards over the inner steps."""
        episode.begin("support")
        start, others = divided(meta, self._adapted)
        descent = Descent.start(self._make_inner(), start)
        sweep = Sweep(descent, others, self.inner_steps if start else 0, partial(self._advance, episode))
        found = query_row(self, episode, {**sweep.others, **sweep.end.parameters}, lambda point: point)
        slopes = filled(found.gradients, meta)
        by_start, by_others = sweep.back({name: slopes[name] for name in sweep.end.parameters})
        found.gradients = {**by_start, **{name: slopes[name] + by_others[name] for name in sweep.others}}
        return found


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=MAML,
        summary="learns an initialisation by differentiating through the inner loop",
        reference="Finn et al. 2017, arXiv 1703.03400",
        traits={"exact_rows"},
    )
