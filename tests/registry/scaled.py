"""A plugin whose paper uses another scale than the mean."""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, hookimpl


class Scaled(Homogenizer):
    """The plain mean; the paper's step is `factor` · N times as long."""

    def __init__(self, factor: Annotated[float, Ge(1)] = 2.0) -> None:
        self.factor = factor

    def mix(self, step: Step) -> StageResult:
        return StageResult(torch.ones(step.tasks), aux=self.factor)

    def paper_scale(self, step: Step) -> Tensor | float:
        factor: float = step.aux
        return factor * step.tasks


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(factory=Scaled, summary="another scale in its paper")
