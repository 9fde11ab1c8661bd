"""Reweighting of RotoGBML: weights under which the tasks' gradient norms follow their losses."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, OptionError, Step, hookimpl, keyed

# Relative rounding error of norms of float32 rows.
ROUNDING = 1e-6


class Reweight(Homogenizer):
    """Weights ω, Σ_i ω_i = N, that solve ω_i n_i = ḡ t_i: gradients of equal size, larger for tasks with large losses.

        n_i = ‖∇_θ L_i‖ over the encoder,  ḡ = mean_i ω_i n_i,  L̂_i = L_i / L⁰,  r_i = L̂_i / mean_j L̂_j
        t_i = r_i^β / mean_j r_j^β,  fixed point: ω_i ∝ t_i / n_i
        leader: ω = N softmax(a), descent in a on Σ_i |ω_i n_i − ḡ t_i| with ḡ and t constant,
            ∂/∂ω_i = sign(ω_i n_i − ḡ t_i) · n_i
        d = 1/N Σ_i ω_i g_i

    Args:
        beta: β ≥ 0; 0 equalizes the norms, larger values favour tasks with larger losses. The paper: 0.1 for one
            domain, 1.5 where every task has another domain.
        solver: `"gradient"`, the paper's leader: one Adam step after each meta-step; `"fixed_point"`, the limit of the
            leader, computed from the norms of each step without state and rate.
        lr: > 0, rate of the leader's Adam.
        key: state of the leader by `"domain"`, the names of the tasks (their positions where they have none), or by
            `"slot"`, their positions, for meta-learning in one domain, whose tasks have one name and one weight.
        initial_loss: L⁰ > 0. One value for all tasks (the paper: log of the number of classes) cancels in r.
        parameters: glob pattern of the names of the parameters whose gradients are measured; `"auto"` is `encoder.*`
            where such names exist, otherwise all.
        variant: `"paper"` is equations 4 and 5 literally (I_i = L̂_i / Σ L̂, raw ω, no normalization), with
            `solver="gradient"`. It shrinks all weights to zero when tasks agree. Its Adam receives absolute gradients.

    Use it when gradient norms differ by a large factor, so that the tasks with the longest rows dominate the step; on
    functions of different magnitude, `reweight(beta=0, solver="fixed_point")` lowered the error by a third
    (docs/results/first-comparison.md). Where norms are within a factor of two it has little to correct
    (docs/results/ablation.md), and it does not resolve conflicts. The weight of a task
    whose gradient vanishes approaches N.

    Needs one gradient per task (N backward passes), for the norms n_i (the paper's G_i), but no derivatives of
    these norms. A task with zero gradient keeps weight one. Losses must not be
    negative unless β = 0.

    Differentiable in rows and losses with `"fixed_point"`, in the rows with `"gradient"`.

    State: with `"gradient"`, a and Adam's moments, by key; otherwise none.

    Cost: one pass over the rows, O(N).

    Source: Zhang et al. 2023 (RotoGBML), arXiv 2303.06679, equations 4 and 5.

    Deviations: (1) r and t are relative to their means. With the paper's I_i = L̂_i / Σ L̂ the targets of N equal tasks
    are ḡ N^(−β), so every weight falls to zero, and the paper's claim that the method "degenerates to plain learning
    when tasks agree" is false. (2) ω is a softmax, because raw weights become negative. (3) Σ ω_i = N holds exactly
    after every step. (4) ḡ is a constant, as in GradNorm, the origin of the equations; if it is differentiated, all
    weights fall to zero again.

    >>> import torch, gradhomog
    >>> jacobian = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    >>> gradhomog.pipeline("reweight(beta=0, solver='fixed_point')").combine(jacobian)
    tensor([0.7500, 0.7500])
    """

    state_names = {"leader": dict[str, keyed.Moments]}

    def __init__(
        self,
        beta: Annotated[float, Ge(0)] = 1.5,
        solver: Literal["gradient", "fixed_point"] = "gradient",
        lr: Annotated[float, Gt(0)] = 5e-4,
        key: Literal["domain", "slot"] = "domain",
        initial_loss: Annotated[float, Gt(0)] = 1.0,
        parameters: str = "auto",
        variant: Literal["corrected", "paper"] = "corrected",
    ) -> None:
        if variant == "paper" and solver == "fixed_point":
            raise OptionError(
                'reweight: `solver` must not be "fixed_point" with variant="paper", because its only fixed point is '
                'zero. Use solver="gradient".'
            )
        self.beta, self.solver, self.lr, self.key = beta, solver, lr, key
        self.initial_loss, self.parameters, self.variant = initial_loss, parameters, variant
        self._initial = 0.0 if variant == "corrected" else 1.0
        # Adam states of the leader's variable: a, or ω in the paper's variant.
        self.leader: dict[str, keyed.Moments] = {}

    def mix(self, step: Step) -> Tensor:
        if self.solver == "gradient":
            return self._leader_weights(step)
        norms = self._norms(step)
        return fixed_point(norms, self._targets(step, norms))

    def update(self, step: Step) -> Mapping[str, Any]:
        if self.solver == "fixed_point":
            return {}
        norms = self._norms(step)
        weights = self._leader_weights(step)
        weighted = weights.abs() * norms
        mean = weighted.mean()
        if not mean > 0:
            return {}  # all gradients are zero: nothing to balance
        gap = weighted - mean * self._targets(step, norms)
        # A gap within rounding counts as zero, because the sign of a rounding error would cause a full step.
        gradient = torch.where(gap.abs() > ROUNDING * mean, torch.sign(gap), 0.0) * torch.sign(weights) * norms
        if self.variant == "corrected":  # relative to the mean norm; chain rule of ω = N softmax(a)
            gradient = weights * (gradient - (weights * gradient).mean()) / mean
        keys = [key.by(self.key) for key in step.keys]
        return {"leader": keyed.adam(self.leader, keys, gradient, self.lr, initial=self._initial)}

    def _leader_weights(self, step: Step) -> Tensor:
        values = keyed.values(self.leader, [key.by(self.key) for key in step.keys], self._initial)
        return step.tasks * torch.softmax(values, dim=0) if self.variant == "corrected" else values

    def _norms(self, step: Step) -> Tensor:
        pattern = self.parameters
        if pattern == "auto":
            pattern = "encoder.*" if step.matches("encoder.*") else "*"
        return step.norms(pattern)

    def _targets(self, step: Step, norms: Tensor) -> Tensor:
        """Return t, or the paper's I^β, `[tasks]`."""
        if self.beta == 0:
            return torch.ones_like(norms)
        losses = step.losses / self.initial_loss
        if bool((losses < 0).any()):
            raise OptionError(f"reweight: losses must not be negative unless beta=0; got {step.losses.tolist()}.")
        if not losses.sum() > 0:
            return torch.ones_like(norms)
        if self.variant == "paper":
            return (losses / losses.sum()) ** self.beta
        rates = (losses / losses.mean()) ** self.beta
        return rates / rates.mean()


def fixed_point(norms: Tensor, targets: Tensor) -> Tensor:
    """Return ω_i ∝ t_i / n_i with Σω = N; weight one for a zero gradient, weight zero for a zero target."""
    nonzero = norms > 0
    if not bool(nonzero.any()):
        return torch.ones_like(norms)
    smallest = norms[nonzero].min()
    shares = torch.where(nonzero, targets * smallest / torch.where(nonzero, norms, smallest), torch.zeros_like(norms))
    if not bool(shares.sum() > 0):
        return torch.ones_like(norms)
    return torch.where(nonzero, shares / shares.sum() * nonzero.sum(), torch.ones_like(norms))


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=Reweight,
        summary="weights that make gradient norms follow the tasks' losses (RotoGBML)",
        reference="Zhang et al. 2023, arXiv 2303.06679, equations 4 and 5",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"losses", "norms"},
    )
