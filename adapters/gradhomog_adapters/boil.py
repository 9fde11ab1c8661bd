"""BOIL: body only in the inner loop, the head is learnt in the outer loop alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from gradhomog import LearnerSpec, hookimpl
from gradhomog_adapters._episodic.engine import Autocast, Compile, Engine
from gradhomog_adapters._episodic.norm import Norm
from gradhomog_adapters._inner_loop.optimizer import Inner
from gradhomog_adapters.maml import MAML


def boil(
    encoder: nn.Module,
    head: nn.Module,
    homogenizers: Any = None,
    *,
    inner: Inner = "sgd",
    inner_lr: float = 0.5,
    inner_steps: int = 1,
    test_steps: int | None = None,
    first_order: bool = False,
    adapt: str | Sequence[str] = "encoder.*",
    norm: Norm = "batch",
    engine: Engine = "auto",
    compile: Compile = False,
    autocast: Autocast = None,
    recompute: bool = False,
    loss: Any = None,
) -> MAML:
    """`MAML(..., adapt="encoder.*")`: row_i = ∇_{θ,φ} L_Q(θ_i^K(θ, φ), φ), θ the encoder, φ the head.

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        inner_lr, inner_steps: 0.5 and one step, as published; longer loops want smaller rates.
        adapt: glob pattern, or several, over the parameters that the inner loop changes: part of the encoder, say.
        inner, test_steps, first_order, norm, engine, compile, autocast, recompute: as of `MAML`.

    Cost: as MAML.

    Source: Oh et al. 2021, arXiv 2008.08882, section 3, equation 3. Deviation: none.

    >>> import torch
    >>> from gradhomog import TaskBatch
    >>> _ = torch.manual_seed(0)
    >>> learner = boil(torch.nn.Linear(2, 4), torch.nn.Linear(4, 2))
    >>> x, y = torch.randn(3, 4, 2), torch.tensor([0, 1, 0, 1]).repeat(3, 1)
    >>> learner.rows(TaskBatch(x, y, x, y)).losses.shape
    torch.Size([3])
    """
    return MAML(
        encoder, head, homogenizers, inner=inner, inner_lr=inner_lr, inner_steps=inner_steps, test_steps=test_steps,
        first_order=first_order, adapt=adapt, norm=norm, engine=engine, compile=compile, autocast=autocast,
        recompute=recompute, loss=loss,
    )  # fmt: skip


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=boil,
        summary="MAML whose inner loop changes the encoder only",
        reference="Oh et al. 2021, arXiv 2008.08882",
        traits={"exact_rows"},
    )
