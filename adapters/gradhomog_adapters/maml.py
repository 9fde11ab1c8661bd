"""MAML: differentiate the query loss through the inner loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import torchopt
from torch import Tensor, nn

from gradhomog import LearnerSpec, hookimpl
from gradhomog_adapters._inner_optimizer import Inner, check_recomputable, check_steps, resolve
from gradhomog_adapters._network.functional import Parameters, choose
from gradhomog_adapters.execution import Execution, ExecutionOptions
from gradhomog_adapters.few_shot import FewShotLearner, Support

Tensors = dict[str, Tensor]


class MAML(FewShotLearner):
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
        first_order: take the query gradient at the adapted point as the row (FOMAML): inner gradients are constants,
            and so are the parameters that the inner optimizer reads, so that weight decay and momentum add no
            second-order term.
        adapt: glob pattern, or several, over the parameter names that the inner loop changes: `"*"`, `"head.*"`. The
            others are learnt in the outer loop only. Where it changes nothing of the encoder, the support set is
            encoded once for all steps.
        engine: one task after the other, `"loop"`, or all at once, `"vmap"`; `"auto"` chooses by the network.
        compile: compile the vectorized engine.
        autocast: `"bfloat16"` for forward passes.
        norm: the statistics of batch normalization: `"batch"`, of each batch; `"support"`, of the support set;
            `"frozen"`, the running statistics that the network came with.
        recompute: build the graph of each inner step in the backward pass, so that memory does not grow with K; takes
            1.1 to 1.8 times as long.
        execution: these five as one object, `gradhomog_adapters.Execution`, which documents them.

    The row of every parameter comes from one backward pass per task, which also gives the gradients w.r.t. the query
    features; each task's graph is freed before the next is built. The network is a function of named tensors: an
    exception leaves it untouched. Cost per task: K + 1 forward passes; second order about 2.2 times the arithmetic of
    first order.

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
        loss: Any = None,
        execution: Execution | None = None,
        **keywords: Unpack[ExecutionOptions],
    ) -> None:
        super().__init__(encoder, head, homogenizers, loss=loss, execution=execution, **keywords)
        self.inner_steps, self.test_steps = check_steps(inner_steps, test_steps)
        self.first_order, self.order = first_order, "first" if first_order else "second"
        self.inner = resolve(inner, inner_lr)
        self.adapted = choose(list(self.network.parameters()), adapt, "adapt")
        self._adapts_encoder = any(name.startswith("encoder.") for name in self.adapted)
        if self.execution.recompute:
            check_recomputable(self.homogenizers, self.inner)

    def adapt(self, parameters: Parameters, support: Support) -> Parameters:
        for point in self.inner_loop(parameters, support):
            adapted = point
        return adapted

    def inner_loop(self, parameters: Parameters, support: Support) -> Iterator[Parameters]:
        """θ^0, …, θ^K: all parameters before the inner loop and after each of its steps."""
        # Parameters that were frozen after the learner was made are missing.
        start = {name: parameters[name] for name in self.adapted if name in parameters}
        others = {name: parameters[name] for name in parameters if name not in start}
        features = self.shared_features(start, others, support)
        inner = self.inner(support.order)

        @support.recomputed
        def step(k: int, theta: Tensors, state: Any, held: Tensors) -> tuple[Tensors, Any]:
            gradients = support.gradient(lambda at: self.support_loss({**held, **at}, support, k, features), theta)
            # inplace=False: TorchOpt's default writes into the parameters and cuts the graph in silence.
            updates, state = inner.update(gradients, state, params=theta, inplace=False)
            return torchopt.apply_updates(theta, self.scaled(updates, theta, held, k), inplace=False), state

        theta, state = start, inner.init(start)
        yield {**others, **theta}
        for k in range(support.steps):
            if start:
                theta, state = step(k, theta, state, others)
            yield {**others, **theta}

    # -- the lines in which other learners differ --------------------------------------------------------------------

    def support_loss(self, parameters: Parameters, support: Support, k: int, features: Tensor | None) -> Tensor:
        """The loss that inner step k descends on."""
        return support.loss(parameters, features)

    def scaled(self, updates: Tensors, theta: Parameters, held: Parameters, k: int) -> Tensors:
        """The updates of inner step k, as they are added to the parameters `theta`."""
        return updates

    def shared_features(self, start: Parameters, others: Parameters, support: Support) -> Tensor | None:
        """Support features, where they are the same in all inner steps."""
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
        summary="learns an initialisation by differentiating through the inner loop",
        reference="Finn et al. 2017, arXiv 1703.03400",
        traits={"exact_rows"},
    )
