"""First-order MAML, under its own name."""

from __future__ import annotations

from typing import Any

from torch import nn

from gradhomog import LearnerSpec, hookimpl
from gradhomog_adapters._episodic.engine import Autocast, Compile, Engine
from gradhomog_adapters._episodic.norm import Norm
from gradhomog_adapters._inner_loop.optimizer import Inner
from gradhomog_adapters.maml import MAML


def fomaml(
    encoder: nn.Module,
    head: nn.Module,
    homogenizers: Any = None,
    *,
    inner: Inner = "sgd",
    inner_lr: float = 0.01,
    inner_steps: int = 5,
    test_steps: int | None = None,
    adapt: str | list[str] = "*",
    norm: Norm = "batch",
    engine: Engine = "auto",
    compile: Compile = False,
    autocast: Autocast = None,
    loss: Any = None,
) -> MAML:
    """`MAML(..., first_order=True)`: row_i = ∇L_Q at the adapted point, so no Hessian is formed.

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        inner, inner_lr, inner_steps, test_steps, adapt, norm: as of `MAML`: the inner optimizer, its rate, its steps
            while training and at meta-test, the parameters it changes, and what batch normalization normalizes with.
        engine, compile, autocast: as of `MAML`: one task after the other or all at once, compiled, in bfloat16.

    Source: Finn et al. 2017, arXiv 1703.03400, section 5.2.
    """
    return MAML(
        encoder, head, homogenizers, inner=inner, inner_lr=inner_lr, inner_steps=inner_steps,
        test_steps=test_steps, first_order=True, adapt=adapt, norm=norm, engine=engine, compile=compile,
        autocast=autocast, loss=loss,
    )  # fmt: skip


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=fomaml,
        summary="MAML without second derivatives: the query gradient at the adapted point",
        reference="Finn et al. 2017, arXiv 1703.03400, section 5.2",
    )
