"""ALFA: MAML with inner rates and weight decays that a small network generates from gradients and weights."""

from typing import Any, Unpack

import torch
from torch import nn

from gradhomog import LearnerSpec, OptionError, hookimpl
from gradhomog_adapters._network import Parameters
from gradhomog_adapters._option_types import CountOrZero, NonNegative, Positive
from gradhomog_adapters.maml import MAML, InnerLoopOptions, Tensors
from gradhomog_adapters.mamlpp import entry_of_step, rates


class ALFA(MAML):
    """MAML with inner rates α and weight decays β that a network generates for each task and step.

        θ_l^{k+1} = (1 − β_{l,k}) θ_l^k − α_{l,k} ∇_l L_S(θ^k)
        α_{l,k} = a_{l,k} g_φ(τ^k)_l,  β_{l,k} = b_{l,k} g_φ(τ^k)_{N+l},  τ^k = (mean θ_1^k, …, mean ∇_1 L_S(θ^k), …)
        row_i = ∇ L_Q(θ_i^K) w.r.t. θ, φ, a and b

    for the N adapted tensors l; g_φ is a network with one hidden layer of 2N ReLUs.

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        inner_lr: > 0, initial value of all a_{l,k}.
        inner_weight_decay: ≥ 0; the initial value of all b_{l,k} is this times `inner_lr`.
        inner_steps: K ≥ 0 in training.
        test_steps: number of steps at meta-test; default: K. Steps beyond K use the a and b of the last.
        first_order: omit the Hessian; g_φ, a and b still receive their gradients.
        adapt: glob pattern, or several, over the parameters that the inner loop changes.
        seed: seed of the initial weights of g_φ, with the initialization of `torch.nn.Linear`.
        engine, compile, autocast, norm, recompute: see `Execution`.

    Besides the network, these are trained: `learner.generator.*` (φ), `learner.rates.<name>` and
    `learner.decays.<name>` `[max(K, 1)]` (a and b). As published, initial rates are small and of both signs, because
    g_φ is near zero, and the gradients in τ are constants: rows are exact except for these. Cost: as MAML; g_φ has
    8N² + 4N weights.

    Source: Baik et al. 2020, arXiv 2011.00209, equations 3 and 4 and algorithm 1; a and b as in the authors' code.

    Deviations from the authors' code: (1) K values of a and b; theirs has K + 1, of which the last is not used; (2) the
    weights of batch normalization are adapted unless `adapt` excludes them.

    >>> import torch
    >>> from gradhomog import TaskBatch
    >>> _ = torch.manual_seed(0)
    >>> learner = ALFA(torch.nn.Linear(1, 8), torch.nn.Linear(8, 1), inner_steps=2)
    >>> x = torch.linspace(-1, 1, 5)[:, None].repeat(3, 1, 1)
    >>> rows = learner.rows(TaskBatch(x, x.sin(), x, x.sin())).jacobian
    >>> [name for name in rows if "generator" in name][:2], rows["learner.rates.head.bias"].shape
    (['learner.generator.0.weight', 'learner.generator.0.bias'], torch.Size([3, 2]))
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        inner_lr: Positive = 0.01,
        inner_weight_decay: NonNegative = 5e-4,
        inner_steps: CountOrZero = 5,
        seed: int = 0,
        **options: Unpack[InnerLoopOptions],
    ) -> None:
        super().__init__(encoder, head, homogenizers, inner="sgd", inner_lr=1.0, inner_steps=inner_steps, **options)
        width = 2 * len(self.adapted)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.register_module(
                "generator", nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            )
        self.register_module("rates", rates(self.adapted, inner_steps, inner_lr))
        self.register_module("decays", rates(self.adapted, inner_steps, inner_lr * inner_weight_decay))

    def scale_updates(self, updates: Tensors, theta: Parameters, fixed: Parameters, k: int) -> Tensors:
        """−α ∇L_S − β θ, from the updates −∇L_S of gradient descent at rate 1."""
        if len(theta) < len(self.adapted):
            missing = next(name for name in self.adapted if name not in theta)
            raise OptionError(
                f"the generator reads all adapted parameters, but `{missing}` was frozen later. Freeze parameters "
                "before the learner is created."
            )
        means = [tensor.mean() for tensor in theta.values()] + [-updates[name].detach().mean() for name in theta]
        alpha, beta = self.call_extra_module(fixed, "generator", torch.stack(means)).chunk(2)
        moved = {}
        for index, (name, tensor) in enumerate(theta.items()):
            a = entry_of_step(self.extra_parameter(fixed, "rates", name), k)
            b = entry_of_step(self.extra_parameter(fixed, "decays", name), k)
            moved[name] = alpha[index] * a * updates[name] - beta[index] * b * tensor
        return moved


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=ALFA,
        summary="MAML with rates and weight decays that a network generates for each task and step",
        reference="Baik et al. 2020, arXiv 2011.00209",
    )
