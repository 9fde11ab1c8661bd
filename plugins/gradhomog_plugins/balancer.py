"""EnCodec's balancer, VQGAN's adaptive weight: given weights over running means of gradient norms."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, hookimpl, keyed
from gradhomog_plugins._losses import exponential_weights, inverse_logarithms
from gradhomog_plugins._per_task import Preferences, known_weights, require_one
from gradhomog_plugins._primary import Primary, primary_tasks

LARGEST = 1e4
"""The largest ratio of the primary task's norm to another, as in VQGAN's code."""


class Balancer(Homogenizer):
    """Weights that give each task a fixed share of the gradient: inverse to running means of gradient norms.

        m_i = Σ_s β^(t−s) ‖g_i(s)‖ / Σ_s β^(t−s) over the steps s ≤ t of a task
        d = 1/N Σ_i ω_i g_i,  ω_i ∝ w_i / m_i with mean 1
        paper's scale: d = Σ_i λ_i g_i, λ_i = w_i / (m_i Σ_j w_j); with a primary task p: λ_i = w_i min(m_p / m_i, 10⁴)

    Args:
        weights: w_i ≥ 0, a list by position or a dict by name of a task, with the entry `"*"` for other names, as in
            `static`; by default all equal.
        average: β of the running means; 0 uses the norms of this step.
        on: `"parameters"`, norms of the rows, or of the gradients w.r.t. `measure`; `"features"`, the mean over the
            examples of a batch of the norm of the gradient w.r.t. one example's features, EnCodec's `per_batch_item`.
        primary: p, the slot or the name of a task that must be in every batch, whose gradient is the unit of the
            paper's scale; by default none.

    Use it when the shares of the losses are known but not their units, as in codecs and other models with a
    discriminator: losses of waveforms, spectrograms, features and an adversary. Measure the norms where a gradient
    costs little, as both papers do: `measure="decoder.last.weight"` or `features=` in `gradhomog.backward`. It is
    harmful where a gradient vanishes because its task has converged: the rest is noise, which gets its full share.
    It does not resolve conflicts.

    EnCodec's balancer is `balancer(on="features", weights={...}, scale="paper")`; VQGAN's adaptive weight is
    `balancer(average=0, primary="reconstruction", weights={"adversarial": 0.8}, scale="paper")` with `measure=` the
    weight of the decoder's last layer. A task whose norms were all zero has the geometric mean of the others as m_i.
    The mean of ω is over absent tasks of earlier steps too. While the norm of a primary task is zero, tasks whose norm
    is not have no part in the step.

    Differentiable in the rows (or the gradients w.r.t. features), with means before the step as constants.

    State: by key, m and the number of steps.

    Cost: O(N).

    Source: Défossez et al. 2022, "High Fidelity Neural Audio Compression", arXiv 2210.13438, section 3.4 and its code;
    Esser, Rombach, Ommer 2021, "Taming Transformers for High-Resolution Image Synthesis", arXiv 2012.09841, equation 7.

    Deviations: (1) No epsilons: EnCodec adds 1e-12 to m_i, VQGAN 1e-4 to m_i, which makes λ 1e-4/m_i smaller. (2) Mean
    one by default. (3) Across ranks the result is that of one process with the whole batch: norms are those of mean
    gradients, where both codes average the norms of the ranks or do not exchange them (VQGAN: each rank has another
    weight). With `on="features"` and R ranks the paper's scale is R times EnCodec's, as its step grows with the number
    of examples on one rank only. (4) EnCodec's paper has the norm of the whole batch; its code, as here, the mean over
    examples.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("balancer(weights=[1, 3], average=0.5, scale='paper')")
    >>> pipe.combine(torch.tensor([[2.0, 0.0], [0.0, 8.0]]))  # each row's part is its share of the length 1
    tensor([0.2500, 0.7500])
    """

    weights_absent = True
    state_names = {"means": dict[str, float], "counts": dict[str, float]}

    def __init__(
        self,
        weights: Preferences = None,
        average: Annotated[float, Interval(ge=0, lt=1)] = 0.999,
        on: Literal["parameters", "features"] = "parameters",
        primary: Primary | None = None,
    ) -> None:
        self.weights, self.average, self.on, self.primary = weights, average, on, primary
        self.needs = {"norms" if on == "parameters" else "features"}
        self.means: dict[str, float] = {}  # m
        self.counts: dict[str, float] = {}

    def mix(self, step: Step) -> StageResult:
        norms = step.norms() if self.on == "parameters" else mean_example_norms(step.feature_grads)
        counts = keyed.read(self.counts, step.names, 0.0)
        share = (1 - self.average) / (1 - self.average ** (counts + 1))
        means = torch.lerp(keyed.read(self.means, step.names, 0.0), norms, share)
        whole = torch.cat([means, keyed.read(self.means, step.absent_names, 0.0)])
        weights = known_weights(self.weights, step)
        require_one("weights", weights[: step.tasks])
        target = 1 / weights.sum()
        if self.primary is not None:
            target = means[primary_tasks(self.primary, step, "a task in every batch")].mean()
            if not target > 0:  # ratios 0 and, where both norms are zero, 1
                target, whole = torch.ones_like(target), torch.where(whole > 0, torch.inf, 1.0)
            whole = torch.maximum(whole, target / LARGEST)
        logarithms = inverse_logarithms(whole) + weights.log()
        scale = target * step.tasks / len(whole) * logarithms.logsumexp(0).exp()
        found = exponential_weights(logarithms[: step.tasks], logarithms[step.tasks :])
        return StageResult(found, aux=(means, counts + 1, scale))

    def paper_scale(self, step: Step) -> Tensor:
        scale: Tensor = step.aux[2]
        return scale

    def update(self, step: Step) -> Mapping[str, Any]:
        state = zip(("means", "counts"), step.aux, strict=False)
        return {name: keyed.write(getattr(self, name), step.names, values) for name, values in state}


def mean_example_norms(feature_grads: Tensor) -> Tensor:
    """Return the mean over the examples of the norms of `[tasks, examples, features]`, float64 `[tasks]` on the CPU."""
    norms: Tensor = torch.linalg.vector_norm(feature_grads, dim=2, dtype=torch.float64)
    return norms.mean(1).cpu()


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=Balancer,
        summary="given shares of the gradient: weights over running means of norms (EnCodec, VQGAN)",
        reference="Défossez et al. 2022, arXiv 2210.13438; Esser, Rombach, Ommer 2021, arXiv 2012.09841",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"norms", "features"},
    )
