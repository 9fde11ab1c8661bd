"""Meta-SGD: MAML with a learned inner rate for each weight."""

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import nn

from gradhomog import LearnerSpec, OptionError, hookimpl
from gradhomog_adapters._network import Parameters, parameter_module
from gradhomog_adapters._option_types import CountOrZero
from gradhomog_adapters.maml import MAML, InnerLoopOptions, Tensors


class MetaSGD(MAML):
    """MAML with inner steps θ_i^{k+1} = θ_i^k − α∘∇L_S(θ_i^k), in which the rates α are trained like θ.

    row_i = ∇_{θ,α} L_Q(θ_i^K(θ, α)); for one step: w.r.t. θ, (I − H·diag α)∇L_Q; w.r.t. α, −∇L_Q∘∇L_S.

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        rates: initial value of α: a number for all weights, or two, the bounds of a uniform distribution (drawn from a
            separate generator, with `seed`).
        inner_steps: K ≥ 0 in training; published: 1.
        test_steps: K at meta-test; default: `inner_steps`.
        first_order: omit the Hessian: the row w.r.t. θ is ∇L_Q at the adapted point; w.r.t. α it is still
            −Σ_k ∇L_Q∘∇L_S(θ^k), which α needs for training.
        adapt: glob pattern, or several, over the parameters that the inner loop changes; only these have rates.
        seed: seed of the initial rates.
        engine, compile, autocast, norm, recompute: see `Execution`.

    Rates are named `learner.rates.<parameter>` and can become negative, as in the paper. Homogenizers receive their
    rows together with those of the weights. Cost: as MAML, with twice the parameters.

    Source: Li et al. 2017, arXiv 1707.09835, equation 3 and algorithm 1. Deviation: none. The first-order form of other
    implementations drops the gradient of α with the Hessian; α is then not trained.

    >>> import torch
    >>> from gradhomog import TaskBatch
    >>> _ = torch.manual_seed(0)
    >>> learner = MetaSGD(torch.nn.Linear(2, 4), torch.nn.Linear(4, 2), rates=0.1)
    >>> x, y = torch.randn(3, 4, 2), torch.tensor([0, 1, 0, 1]).repeat(3, 1)
    >>> [name for name in learner.rows(TaskBatch(x, y, x, y)).jacobian if name.startswith("learner")][:2]
    ['learner.rates.encoder.weight', 'learner.rates.encoder.bias']
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        rates: float | Sequence[float] = (0.005, 0.1),
        inner_steps: CountOrZero = 1,
        seed: int = 0,
        **options: Unpack[InnerLoopOptions],
    ) -> None:
        super().__init__(encoder, head, homogenizers, inner="sgd", inner_lr=1.0, inner_steps=inner_steps, **options)
        bounds = [rates, rates] if isinstance(rates, (int, float)) else list(rates)
        if len(bounds) != 2 or not 0 <= bounds[0] <= bounds[1] < float("inf"):
            raise OptionError(f"`rates` must be a number, or two in increasing order, not negative; got {rates!r}.")
        low, high = bounds
        generator = torch.Generator().manual_seed(seed)
        weights = self.network.parameters()
        drawn = {}
        for name in self.adapted:
            share = torch.rand(weights[name].shape, generator=generator, dtype=torch.float64)
            drawn[name] = (low + (high - low) * share).to(weights[name])
        self.register_module("rates", parameter_module(drawn))

    def scale_updates(self, updates: Tensors, theta: Parameters, fixed: Parameters, k: int) -> Tensors:
        """−α∘∇L_S, from the updates of gradient descent at rate 1."""
        return {name: self.extra_parameter(fixed, "rates", name) * update for name, update in updates.items()}


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=MetaSGD,
        summary="MAML that learns an inner rate for each weight",
        reference="Li et al. 2017, arXiv 1707.09835",
        traits={"exact_rows"},
    )
