"""Meta-SGD: the inner rates are learnt too, one for each weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog import LearnerSpec, OptionError, TaskRow, hookimpl
from gradhomog_adapters._episodic.engine import Autocast, Compile, Engine
from gradhomog_adapters._episodic.episode import Episode
from gradhomog_adapters._episodic.mirror import mirror
from gradhomog_adapters._episodic.network import Parameters
from gradhomog_adapters._episodic.norm import Norm
from gradhomog_adapters._episodic.query import query_row
from gradhomog_adapters.maml import MAML

RATES = "learner.rates."


class MetaSGD(MAML):
    """MAML whose inner steps are θ_i^{k+1} = θ_i^k − α∘∇L_S(θ_i^k), α a parameter of the meta-problem like θ.

    row_i = ∇_{θ,α} L_Q(θ_i^K(θ, α)); for one step: by θ, (I − H·diag α)∇L_Q, and by α, −∇L_Q∘∇L_S.

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        rates: what α begins with: a number for all weights, or two, between which each is drawn uniformly (from a
            generator of its own, with `seed`).
        inner_steps: K ≥ 0 while training: one, as published.
        test_steps: at meta-test; as `inner_steps` by default.
        first_order: leave the Hessian out: by θ, ∇L_Q at the adapted point; by α still −Σ_k ∇L_Q∘∇L_S(θ^k), which is
            what it has to learn from.
        adapt: glob pattern, or several, over the parameters that the inner loop changes; only these have rates.
        seed: of the first rates.
        norm, engine, compile, autocast, recompute: as of `MAML`.

    Rates are called `learner.rates.<parameter>` and may become negative, as in the paper. Homogenizers see their rows
    beside those of the weights. Cost: as MAML, and twice the parameters.

    Source: Li et al. 2017, arXiv 1707.09835, equation 3 and algorithm 1. Deviation: none. Other implementations drop
    α's gradient with the Hessian in their first-order form; then α is never learnt.

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
        inner_steps: int = 1,
        test_steps: int | None = None,
        first_order: bool = False,
        adapt: str | Sequence[str] = "*",
        seed: int = 0,
        norm: Norm = "batch",
        engine: Engine = "auto",
        compile: Compile = False,
        autocast: Autocast = None,
        recompute: bool = False,
        loss: Any = None,
    ) -> None:
        super().__init__(
            encoder, head, homogenizers, inner="sgd", inner_lr=1.0, inner_steps=inner_steps, test_steps=test_steps,
            first_order=first_order, adapt=adapt, norm=norm, engine=engine, compile=compile, autocast=autocast,
            recompute=recompute, loss=loss,
        )  # fmt: skip
        bounds = [rates, rates] if isinstance(rates, (int, float)) else list(rates)
        if len(bounds) != 2 or not 0 <= bounds[0] <= bounds[1] < float("inf"):
            raise OptionError(f"`rates` must be a number, or two in order, and not negative; got {rates!r}.")
        low, high = bounds
        generator = torch.Generator().manual_seed(seed)
        weights = self.network.parameters()
        drawn = {}
        for name in self._adapted:
            share = torch.rand(weights[name].shape, generator=generator, dtype=torch.float64)
            drawn[name] = (low + (high - low) * share).to(weights[name])
        self.learn("rates", mirror(drawn))

    def row(self, meta: Parameters, episode: Episode) -> TaskRow:
        if not self.first_order:
            return super().row(meta, episode)
        return query_row(self, episode, dict(meta), lambda at: self.adapted(at, episode, self.inner_steps, True))

    def preconditioned(self, slopes: dict[str, Tensor], others: Parameters) -> dict[str, Tensor]:
        # Rates that are frozen are no meta-parameters; their values count all the same.
        own = dict(self.own["rates"].named_parameters())
        return {name: others.get(RATES + name, own[name]) * slope for name, slope in slopes.items()}


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=MetaSGD,
        summary="MAML that learns an inner rate for each weight",
        reference="Li et al. 2017, arXiv 1707.09835",
        traits={"exact_rows"},
    )
