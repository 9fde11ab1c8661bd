"""MAML: differentiate the query loss through the inner loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog import Learner, LearnerSpec, OptionError, Task, TaskRow, hookimpl
from gradhomog_adapters._inner import Inner, descend, resolve
from gradhomog_adapters._network import Network, choose, gradients
from gradhomog_adapters._norm import Norm, SupportStatistics, policy


class MAML(Learner):
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
        loss: Any = None,
    ) -> None:
        super().__init__(encoder, head, homogenizers, loss)
        for name, steps in (("inner_steps", inner_steps), ("test_steps", test_steps)):
            if steps is not None and (not isinstance(steps, int) or steps < 0):
                raise OptionError(f"`{name}` must be an integer and not negative; got {steps!r}.")
        if norm not in ("batch", "support", "frozen"):
            raise OptionError(f"`norm` must be 'batch', 'support' or 'frozen'; got {norm!r}.")
        self._network = Network(encoder, head)
        self._make_inner = resolve(inner, inner_lr)
        self._adapted = choose(list(self._network.parameters()), adapt, "adapt")
        self.inner_steps, self.first_order, self.norm = inner_steps, first_order, norm
        self.test_steps = inner_steps if test_steps is None else test_steps
        self._statistics = SupportStatistics(())

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        with super().mode(training), policy((self.encoder, self.head), self.norm) as statistics:
            self._statistics = statistics
            try:
                yield
            finally:  # it holds graphs of the last task
                self._statistics = SupportStatistics(())

    def task_row(self, task: Task, key: Any) -> TaskRow:
        network, buffers = self._network, self._network.buffers()
        meta = network.parameters()
        self.homogenizers.begin(key, "support")
        adapted = self._adapt(meta, buffers, task.support_x, task.support_y, self.inner_steps, not self.first_order)
        with self._replay(adapted, buffers, task.support_x):
            self.homogenizers.begin(key, "query")
            features = network.encode(adapted, buffers, task.query_x)
            if not features.requires_grad:  # a frozen encoder: its features are where the derivatives end
                features = features.detach().requires_grad_()
            taps = self.homogenizers.transform(features[None], [key])
            outputs = network.classify(adapted, buffers, taps[-1][0])
        loss = self.loss(outputs, task.query_y)
        # First order: by the adapted leaves, and by the meta-parameters themselves where nothing was adapted.
        named, cotangents = gradients(loss, adapted if self.first_order else meta, taps)
        return TaskRow(
            loss.detach(),
            named,
            outputs.detach(),
            [tap[0].detach() for tap in taps],
            [cotangent[0] for cotangent in cotangents],
        )

    def adapted_outputs(self, support_x: Tensor, support_y: Tensor, query_x: Tensor) -> Tensor:
        network, buffers = self._network, self._network.buffers()
        with torch.enable_grad():  # the inner loop differentiates, whatever the caller's mode is
            adapted = self._adapt(network.parameters(), buffers, support_x, support_y, self.test_steps, False)
        differentiable = torch.is_grad_enabled() and query_x.requires_grad
        with torch.set_grad_enabled(differentiable), self._replay(adapted, buffers, support_x):
            return network.outputs(adapted, buffers, query_x)

    def _adapt(
        self,
        meta: dict[str, Tensor],
        buffers: dict[str, Tensor],
        x: Tensor,
        y: Tensor,
        steps: int,
        second_order: bool,
    ) -> dict[str, Tensor]:
        """All parameters, those of `adapt` after `steps` inner steps on the support set."""

        def loss(parameters: dict[str, Tensor]) -> Tensor:
            return self.loss(self._network.outputs({**meta, **parameters}, buffers, x), y)

        start = {name: meta[name] for name in self._adapted if name in meta}  # some may have been frozen since
        return {**meta, **descend(self._make_inner, start, loss, steps, second_order)}

    def _replay(self, adapted: dict[str, Tensor], buffers: dict[str, Tensor], support_x: Tensor) -> Any:
        """For `norm="support"`: record the support set's statistics under the adapted parameters, and use them."""
        if self.norm != "support" or not self._statistics.layers:
            return nullcontext()
        self._statistics.record()
        self._network.outputs(adapted, buffers, support_x)
        return self._statistics.replay()


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=MAML,
        summary="learns an initialisation by differentiating through the inner loop",
        reference="Finn et al. 2017, arXiv 1703.03400",
        traits={"exact_rows"},
    )
