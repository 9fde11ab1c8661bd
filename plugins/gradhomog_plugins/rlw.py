"""Random loss weighting (RLW): random weights in every step, a control for adaptive methods."""

from typing import Literal

import torch
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, hookimpl

Distribution = Literal["normal", "uniform", "dirichlet", "bernoulli", "constrained_bernoulli"]


class RLW(Homogenizer):
    """Random weights with sum one, drawn in every step.

        d = Σ_i w_i g_i,  w = softmax(ξ),  ξ ~ N(0, I)

    Args:
        distribution: distribution of the weights. `"normal"`: softmax of normal numbers, as in the paper; `"uniform"`:
            softmax of uniform numbers in [0, 1); `"dirichlet"`: uniform on the simplex; `"bernoulli"`: equal weights of
            a random nonempty subset of the tasks; `"constrained_bernoulli"`: one task.
        seed: seed of the weights.

    Use it when an adaptive method needs a control: the expected weights are all 1/N, so the expected direction is the
    plain mean, and a gain over this method is not a gain by noise. It addresses no symptom of losses, norms or cosines
    itself, and it adds variance to every step.

    Acts on rows: shared parameters receive the gradient of the weighted losses; each head of a multi-task network
    receives the unweighted gradient of its loss.

    Differentiable in the rows, with the weights as constants.

    State: none.

    Cost: O(N).

    Source: Lin et al. 2022, "Reasonable Effectiveness of Random Weighting", arXiv 2111.10603, algorithm 2; the other
    distributions: its first version and the code of that time.

    Deviations: (1) All distributions have sum one; Bernoulli weights of LibMTL were 0 and 1, so that the length of the
    step grew with the number of ones. (2) Dirichlet weights are used directly; LibMTL applied a softmax to them too,
    which makes them almost equal. (3) Weights are a function of the seed and the number of the step. (4) Heads are not
    weighted; TorchJD's scalarizer of this name weights them as well.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("rlw").homogenize(torch.eye(3)).weights
    tensor([1.0881, 1.3445, 0.5674], dtype=torch.float64)
    """

    def __init__(self, distribution: Distribution = "normal", seed: int = 0) -> None:
        self.distribution, self.seed = distribution, seed

    def mix(self, step: Step) -> Tensor:
        return step.tasks * draw_weights(step.tasks, self.distribution, step.generator)


def draw_weights(tasks: int, distribution: Distribution, generator: torch.Generator) -> Tensor:
    """Return random weights with sum one, float64 `[tasks]`."""
    if distribution == "normal":
        return torch.softmax(torch.randn(tasks, generator=generator, dtype=torch.float64), dim=0)
    uniform = torch.rand(tasks, generator=generator, dtype=torch.float64)
    if distribution == "uniform":
        return torch.softmax(uniform, dim=0)
    if distribution == "dirichlet":
        exponential = -torch.log1p(-uniform)  # finite; divided by their sum they are uniform on the simplex
        return exponential / exponential.sum()
    if distribution == "constrained_bernoulli":
        return torch.nn.functional.one_hot(uniform.argmax(), tasks).double()
    while not bool((chosen := uniform < 0.5).any()):
        uniform = torch.rand(tasks, generator=generator, dtype=torch.float64)
    return chosen.double() / chosen.sum()


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=RLW,
        summary="random weights in every step, a control for adaptive methods",
        reference="Lin et al. 2022, arXiv 2111.10603",
        traits={"differentiable", "stochastic", "scale_equivariant", "rotation_equivariant"},
    )
