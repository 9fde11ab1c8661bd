"""MAML: learn an initialization by differentiating the query loss through the inner loop."""

from __future__ import annotations  # torch.compile does not evaluate annotations of an inner function

from collections.abc import Collection, Sequence
from typing import Any, Unpack

import torchopt
from torch import Tensor, nn

from gradhomog import LearnerSpec, hookimpl
from gradhomog_adapters._inner_optimizer import Inner, check_recomputable, make_inner_optimizer
from gradhomog_adapters._network import Parameters, match_names
from gradhomog_adapters._option_types import CountOrZero, Positive
from gradhomog_adapters.few_shot import FewShotLearner, LearnerOptions, Support

Tensors = dict[str, Tensor]


class InnerLoopOptions(LearnerOptions, total=False):
    """Keywords of `MAML` that learners with a fixed inner optimizer pass on to it."""

    test_steps: CountOrZero | None
    first_order: bool
    adapt: str | Sequence[str]


class MAMLOptions(InnerLoopOptions, total=False):
    """Keywords of `MAML`."""

    inner: Inner
    inner_lr: Positive
    inner_steps: CountOrZero


class MAML(FewShotLearner):
    """Learns an initialization from which a few inner steps on the support set of a task give a low query loss.

    ψ_i⁰ = ψ,  ψ_i^{k+1} = ψ_i^k − α ∇L_S(ψ_i^k)  (or any other TorchOpt transformation)
    row_i = ∇_ψ L_Q(ψ_i^K(ψ)) = Π_k (I − α H_k) ∇L_Q(ψ_i^K) for gradient descent;  first order: ∇L_Q(ψ_i^K)

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        inner: inner optimizer: `"sgd"`, `"momentum"`, `"adam"`, `"adamw"`, at `inner_lr`; or a TorchOpt transformation
            (`torchopt.sgd(lr=0.01)`, `torchopt.chain(...)`), or a function that returns one. Each task starts with a
            new state. Set `eps_root` for Adam and its variants: with TorchOpt's default of 0 an exactly zero gradient
            (a dead ReLU, a bias before batch normalization) makes meta-gradients NaN; TorchOpt's RMSProp has no such
            option. `"adam"` and `"adamw"` have `eps_root=1e-8`, which shortens the steps of parameters whose gradient
            is below 1e-4: a row of a small tanh network differed by up to 67 % from that with 1e-10. If gradients are
            that small, pass `torchopt.adam(lr=..., eps_root=1e-10)`.
        inner_lr: > 0, used if `inner` is a name.
        inner_steps: K ≥ 0 in training.
        test_steps: K at meta-test; default: `inner_steps`.
        first_order: use the query gradient at the adapted point as the row (FOMAML): inner gradients are constants,
            and so are the parameters that the inner optimizer reads, so that weight decay and momentum add no
            second-order term.
        adapt: glob pattern, or several, over the names of the parameters that the inner loop changes: `"*"`,
            `"head.*"`. The others are trained in the outer loop only. If no parameter of the encoder is adapted, the
            support set is encoded once for all steps.
        engine: one task after the other, `"loop"`, or all at once, `"vmap"`; `"auto"`: selected by the network.
            `gradhomog_adapters.Execution` documents this option and the next four.
        compile: compile the vectorized engine.
        autocast: `"bfloat16"` for forward passes.
        norm: the statistics of batch normalization: `"batch"`, of each batch; `"support"`, of the support set;
            `"frozen"`, the running statistics of the given network.
        recompute: build the graph of each inner step in the backward pass, so that memory does not grow with K; takes
            1.1 to 1.8 times as long.

    The row is computed by one backward pass per task, which also computes the gradients w.r.t. the query features; each
    task's graph is freed before the next one is built. The network is called as a function of named tensors, so an
    exception does not change it. Cost per task: K + 1 forward passes; second order takes about 2.2 times the arithmetic
    of first order.

    Source: Finn et al. 2017, arXiv 1703.03400, algorithm 1 and section 5.2 (first order).

    Deviations: (1) rows are computed per task and averaged; the authors' code sums losses, which is equal up to
    rounding; (2) meta-gradients are not clipped at ±10, as the authors' code does for miniImageNet; (3) TorchOpt's
    functional transformations are used, not `MetaSGD` and `MetaAdam`, which adapt modules in place, share batch-norm
    buffers between tasks by default, and have no first-order mode.

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
        inner_lr: Positive = 0.01,
        inner_steps: CountOrZero = 5,
        test_steps: CountOrZero | None = None,
        first_order: bool = False,
        adapt: str | Sequence[str] = "*",
        **options: Unpack[LearnerOptions],
    ) -> None:
        super().__init__(encoder, head, homogenizers, **options)
        self.inner_steps, self.test_steps = inner_steps, test_steps
        self.first_order, self.order = first_order, "first" if first_order else "second"
        self.inner = make_inner_optimizer(inner, inner_lr)
        self.adapted = match_names(list(self.network.parameters()), adapt, "adapt")
        self._adapts_encoder = any(name.startswith("encoder.") for name in self.adapted)
        if self.execution.recompute:
            check_recomputable(self.homogenizers, self.inner)

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        return self.inner_loop(parameters, support, [support.steps])[0]

    def inner_loop(self, parameters: Parameters, support: Support, after: Collection[int]) -> list[Parameters]:
        """Return all parameters θ^k after the given numbers of inner steps, in increasing order."""
        # Parameters that were frozen after the learner was created are missing.
        start = {name: parameters[name] for name in self.adapted if name in parameters}
        others = {name: parameters[name] for name in parameters if name not in start}
        features = self.shared_features(start, others, support)
        inner = self.inner(support.order)

        @support.recomputed
        def step(k: int, theta: Tensors, state: Any, fixed: Tensors) -> tuple[Tensors, Any]:
            gradients = support.gradient(lambda at: self.support_loss({**fixed, **at}, support, k, features), theta)
            # inplace=False: TorchOpt's default modifies the parameters and silently cuts the graph.
            updates, state = inner.update(gradients, state, params=theta, inplace=False)
            return torchopt.apply_updates(theta, self.scale_updates(updates, theta, fixed, k), inplace=False), state

        theta, state = start, inner.init(start)
        points: list[Parameters] = [{**others, **theta}] if 0 in after else []
        for k in range(support.steps):
            if start:
                theta, state = step(k, theta, state, others)
            if k + 1 in after:
                points.append({**others, **theta})
        return points

    # -- methods that other learners override ------------------------------------------------------------------------

    def support_loss(self, parameters: Parameters, support: Support, k: int, features: Tensor | None) -> Tensor:
        """Loss that inner step k minimizes."""
        return support.loss(parameters, features)

    def scale_updates(self, updates: Tensors, theta: Parameters, fixed: Parameters, k: int) -> Tensors:
        """Return the updates that inner step k adds to the parameters `theta`."""
        return updates

    def shared_features(self, start: Parameters, others: Parameters, support: Support) -> Tensor | None:
        """Support features if all inner steps share them, otherwise None."""
        if self.execution.recompute or self._adapts_encoder or not start:
            return None
        if support.encoded is None:
            features = support.features(others)
            support.encoded = features if support.order == "second" else features.detach()
        return support.encoded


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=MAML,
        summary="learns an initialization by differentiating through the inner loop",
        reference="Finn et al. 2017, arXiv 1703.03400",
        traits={"exact_rows"},
    )
