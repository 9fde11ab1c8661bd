"""Baseline++: as Baseline, with classifiers by cosine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from torch import nn

from gradhomog import LearnerSpec, hookimpl
from gradhomog_adapters._base_classes import BaseClasses
from gradhomog_adapters._classifiers import MakeCosine
from gradhomog_adapters.execution import Execution, ExecutionOptions


class BaselinePP(BaseClasses):
    """As `Baseline`, with outputs s · l_w · cos(d_w, f(x)): classes are compared by direction.

    Args:
        encoder, head, homogenizers, loss, classes, input_shape: as of `Baseline`.
        seed: as of `Baseline`.
        execution, engine, compile, autocast, norm, recompute: see `Execution`.
        test_lr, test_epochs, test_batch: as of `Baseline`: of the descent at meta-test.
        scale: s > 0; by default 2 for up to 200 classes and 10 for more, each classifier by its own number.

    Directions d `[classes, features]` and lengths l `[classes, 1]` are learnt: weight normalization, as in the
    authors' code. Features of zero (dead ReLUs) have outputs of zero and no derivative.

    Source: Chen et al. 2019, arXiv 1904.04232, section 3.3 and their code.

    Deviations: those of `Baseline`, and (4) the norm of features is not enlarged by 1e-5, so outputs do not depend on
    their scale; (5) s = 10 for any number of classes in later code (Tseng et al. 2020): give `scale`.

    >>> import torch
    >>> learner = BaselinePP(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2), classes=6)
    >>> {name: tuple(p.shape) for name, p in learner.own["classifier"].named_parameters()}
    {'direction': (6, 4), 'length': (6, 1)}
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        classes: int | None = None,
        scale: float | None = None,
        input_shape: Sequence[int] | None = None,
        test_lr: float = 0.01,
        test_epochs: int = 100,
        test_batch: int = 4,
        seed: int = 0,
        loss: Any = None,
        execution: Execution | None = None,
        **keywords: Unpack[ExecutionOptions],
    ) -> None:
        super().__init__(
            encoder, head, homogenizers, MakeCosine(scale), classes, input_shape, test_lr, test_epochs, test_batch,
            seed, loss=loss, execution=execution, **keywords,
        )  # fmt: skip


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=BaselinePP,
        summary="as baseline, with classifiers by cosine, under weight normalization",
        reference="Chen et al. 2019, arXiv 1904.04232, section 3.3",
        traits={"exact_rows"},
    )
