"""Random loss weighting (RLW): new random weights at every step, the litmus test of methods that adapt them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, hookimpl


class RLW(Homogenizer):
    """Row i is multiplied by a random weight, drawn anew at every step.

    d = Σ_i w_i g_i,  w = softmax(ξ),  ξ ~ N(0, I)  (Σ_i w_i = 1)

    Args:
        distribution: of the weights before they are brought to the sum one. `"normal"`: softmax of normal numbers, the
            paper's; `"uniform"`: softmax of uniform numbers in [0, 1); `"dirichlet"`: uniform on the simplex;
            `"bernoulli"`: a random subset of the tasks, not empty, weighs alike; `"constrained_bernoulli"`: one task.
        seed: of the generator that the weights are drawn from; never the global one.
        scale: accepted for uniformity; Σw = 1 means N identical rows give that row in both.

    Acts on rows: the shared parameters see the combined loss, the heads of a multi-task network their own losses.

    Differentiable in the rows, the weights being constants. State: the generator. Cost: O(N). The expected weights are
    all 1/N, so the expected direction is the plain mean: what a method gains over this one is not gained by noise.

    Source: Lin et al. 2022, "Reasonable Effectiveness of Random Weighting", arXiv 2111.10603, algorithm 2; the other
    distributions: its first version and the code of that time.

    Deviations: (1) all distributions have the sum one; LibMTL left Bernoulli weights 0 and 1, so that the step was as
    long as there were ones; (2) LibMTL took the softmax of Dirichlet draws too, which makes them almost equal; (3) the
    generator is the method's own; (4) TorchJD's scalarizer of this name weighs the heads as well.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("rlw").homogenize(torch.eye(3)).weights
    tensor([2.5339, 0.4047, 0.0614], dtype=torch.float64)
    """

    carried = ("generator",)

    def __init__(
        self,
        distribution: Literal["normal", "uniform", "dirichlet", "bernoulli", "constrained_bernoulli"] = "normal",
        seed: int = 0,
        scale: Literal["mean", "paper"] = "mean",
    ) -> None:
        self.distribution, self.scale = distribution, scale
        self.generator = torch.Generator().manual_seed(seed)

    def mix(self, evidence: Evidence) -> Tensor:
        return evidence.tasks * self._shares(evidence.tasks)

    def _shares(self, tasks: int) -> Tensor:
        """Random weights with the sum one, `[tasks]`."""
        if self.distribution == "normal":
            return torch.softmax(torch.randn(tasks, generator=self.generator, dtype=torch.float64), dim=0)
        uniform = torch.rand(tasks, generator=self.generator, dtype=torch.float64)
        if self.distribution == "uniform":
            return torch.softmax(uniform, dim=0)
        if self.distribution == "dirichlet":
            exponential = -torch.log1p(-uniform)  # over their sum these are uniform on the simplex; never infinite
            return exponential / exponential.sum()
        if self.distribution == "constrained_bernoulli":
            return torch.nn.functional.one_hot(uniform.argmax(), tasks).double()
        while not bool((chosen := uniform < 0.5).any()):
            uniform = torch.rand(tasks, generator=self.generator, dtype=torch.float64)
        return chosen.double() / chosen.sum()


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=RLW,
        summary="random weights at every step, which adaptive methods have to beat",
        reference="Lin et al. 2022, arXiv 2111.10603",
        traits={"differentiable", "stateful", "stochastic", "scale_equivariant", "rotation_equivariant"},
    )
