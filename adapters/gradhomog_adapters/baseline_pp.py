"""Baseline++: Baseline with cosine classifiers."""

from typing import Any, Unpack

import torch
from torch import nn

from gradhomog import LearnerSpec, hookimpl
from gradhomog_adapters._classifiers import CosineClassifier
from gradhomog_adapters._option_types import Positive
from gradhomog_adapters.baseline import Baseline, BaselineOptions


class BaselinePP(Baseline):
    """`Baseline` with the outputs s · l_w · cos(d_w, f(x)).

    Args:
        encoder, head, homogenizers, loss, classes, input_shape: see `Baseline`.
        seed: see `Baseline`.
        engine, compile, autocast, norm, recompute: see `Execution`.
        test_lr, test_epochs, test_batch: training at meta-test, see `Baseline`.
        scale: s > 0; default, by the number of classes of each classifier: 2 for up to 200 and 10 for more.

    Directions d `[classes, features]` and lengths l `[classes, 1]` are trained: weight normalization, as in the
    authors' code. For zero features (dead ReLUs) outputs and derivatives are zero.

    Source: Chen et al. 2019, arXiv 1904.04232, section 3.3 and their code.

    Deviations: those of `Baseline`, and (4) 1e-5 is not added to the norm of features, so outputs do not depend on
    their scale; (5) later code (Tseng et al. 2020) has s = 10 for any number of classes: set `scale`.

    >>> import torch
    >>> learner = BaselinePP(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2), classes=6)
    >>> {name: tuple(p.shape) for name, p in learner.extra_modules["classifier"].named_parameters()}
    {'direction': (6, 4), 'length': (6, 1)}
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        scale: Positive | None = None,
        **options: Unpack[BaselineOptions],
    ) -> None:
        self.scale = scale  # the base class makes a classifier
        super().__init__(encoder, head, homogenizers, **options)

    def make_classifier(self, features: int, outputs: int, generator: torch.Generator | None = None) -> nn.Module:
        return CosineClassifier(features, outputs, self.scale, generator)


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=BaselinePP,
        summary="baseline with cosine classifiers and weight normalization",
        reference="Chen et al. 2019, arXiv 1904.04232, section 3.3",
        traits={"exact_rows"},
    )
