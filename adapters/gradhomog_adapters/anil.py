"""ANIL: almost no inner loop, only the head is adapted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from gradhomog import LearnerSpec, hookimpl
from gradhomog_adapters._episodic.engine import Autocast, Compile, Engine
from gradhomog_adapters._episodic.norm import Norm
from gradhomog_adapters._inner_loop.optimizer import Inner
from gradhomog_adapters.maml import MAML


def anil(
    encoder: nn.Module,
    head: nn.Module,
    homogenizers: Any = None,
    *,
    inner: Inner = "sgd",
    inner_lr: float = 0.01,
    inner_steps: int = 5,
    test_steps: int | None = None,
    first_order: bool = False,
    adapt: str | Sequence[str] = "head.*",
    norm: Norm = "batch",
    engine: Engine = "auto",
    compile: Compile = False,
    autocast: Autocast = None,
    loss: Any = None,
) -> MAML:
    """`MAML(..., adapt="head.*")`: row_i = ∇_{θ,φ} L_Q(θ, φ_i^K(θ, φ)), φ the head, while training and at meta-test.

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        adapt: glob pattern, or several, over the parameters that the inner loop changes: more than the head, or part of
            it.
        inner, inner_lr, inner_steps, test_steps, first_order, norm, engine, compile, autocast: as of `MAML`.

    The encoder learns from the query loss and, through the head's inner steps, from the support features; the latter is
    what `first_order` leaves out. Where the inner loop changes nothing of the encoder, the support set is encoded once
    for all steps: cost per task, about that of one MAML step whatever K is. A network with dropout then draws one mask
    for all steps.

    Source: Raghu et al. 2020, arXiv 1909.09157, section 4. Deviation: none; NIL, classification at meta-test by the
    cosine to support features, is not built.

    >>> import torch
    >>> from gradhomog import TaskBatch
    >>> _ = torch.manual_seed(0)
    >>> learner = anil(torch.nn.Linear(2, 4), torch.nn.Linear(4, 2), inner_lr=0.1)
    >>> x, y = torch.randn(3, 4, 2), torch.tensor([0, 1, 0, 1]).repeat(3, 1)
    >>> sorted(learner.rows(TaskBatch(x, y, x, y)).jacobian)
    ['encoder.bias', 'encoder.weight', 'head.bias', 'head.weight']
    """
    return MAML(
        encoder, head, homogenizers, inner=inner, inner_lr=inner_lr, inner_steps=inner_steps, test_steps=test_steps,
        first_order=first_order, adapt=adapt, norm=norm, engine=engine, compile=compile, autocast=autocast, loss=loss,
    )  # fmt: skip


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=anil,
        summary="MAML whose inner loop changes the head only",
        reference="Raghu et al. 2020, arXiv 1909.09157",
        traits={"exact_rows"},
    )
