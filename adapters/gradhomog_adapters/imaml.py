"""iMAML: the derivative of a proximal inner problem's solution, whatever path led there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gradhomog import LearnerSpec, OptionError, TaskRow, hookimpl
from gradhomog_adapters._episodic.calculus import Operator
from gradhomog_adapters._episodic.engine import Autocast, Compile, Engine
from gradhomog_adapters._episodic.episode import Episode
from gradhomog_adapters._episodic.learner import Episodic
from gradhomog_adapters._episodic.network import Parameters, choose, constants, filled
from gradhomog_adapters._episodic.query import query_outputs, query_row
from gradhomog_adapters._implicit import conjugate_gradients, custom_root
from gradhomog_adapters._inner_loop.optimizer import Descent, Inner, resolve
from gradhomog_adapters._inner_loop.steps import check_steps
from gradhomog_adapters._inner_loop.support import divided, encoded_once, support_loss
from gradhomog_adapters._network.norm import Norm

Solver = Literal["own", "torchopt"]


class IMAML(Episodic):
    """Learns an initialisation θ near which each task's regularised solution does well on the task's query set.

    θ_i* = argmin L_S(θ') + λ/2 ‖θ' − θ‖²
    row_i = (I + H/λ)⁻¹ ∇L_Q(θ_i*),  H = ∇²L_S(θ_i*);
    by a parameter ω that is not adapted:  ∂_ω L_Q(θ_i*) − 1/λ ∂_ω∂_θ' L_S(θ_i*) · row_i

    The second line is ∂_ω L_Q + (dθ*/dω)ᵀ ∇L_Q: differentiating the condition ∇L_S(θ*, ω) + λ(θ* − θ) = 0 by ω gives
    dθ*/dω = −(H + λI)⁻¹ ∂_θ'∂_ω L_S.

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        inner: as of `MAML`: an optimizer by name, a TorchOpt transformation or a function that makes one. The row
            depends on where it arrives and not on how.
        inner_lr: > 0, used when `inner` is a name. Gradient descent needs it below 2/(λ + largest eigenvalue of H).
        inner_steps: K ≥ 0 steps on the proximal objective while training. The row is the derivative of the loss as
            far as they arrive at its minimum.
        test_steps: K at meta-test, on the same objective; as `inner_steps` by default.
        proximal: λ > 0: how strongly the adapted parameters are held to θ.
        cg_steps: iterations of conjugate gradients, ≥ 1.
        damping: δ ≥ 0: solves with (1 + δ)I + H/λ.
        longest: ≥ 1: a step of conjugate gradients to a row longer than this times ‖∇L_Q‖ is not taken. It is never
            reached while no eigenvalue of H lies below −λ/2 (for 2).
        solver: `"own"`, or `"torchopt"` for TorchOpt's `custom_root`, one task after the other; see below.
        adapt: glob pattern, or several, over the parameter names that the inner problem is about.
        norm: what batch normalization normalizes with, as of `MAML`.
        engine, compile: as of `MAML`: one task after the other or all at once, compiled; K and `cg_steps` are unrolled,
            so that compiling takes minutes.
        autocast: `"bfloat16"` for forward passes; products with H then have its accuracy.

    Where I + H/λ is not positive definite, θ_i* is no strict minimum, and no row is right. Conjugate gradients then
    give the last iterate before a direction without positive curvature, and ∇L_Q (first order) if the first one is
    such; with batch normalization this is the rule at the published λ (`docs/decisions/0012-implicit-gradients.md`).

    No graph of an inner step outlives it: memory does not grow with K. Cost per task: K steps, one graph of ∇L_S,
    `cg_steps` products with H (about two backward passes each); where a parameter is not adapted, one more of both.

    Source: Rajeswaran et al. 2019, arXiv 1909.04630, the proximal problem of section 2.2, the implicit Jacobian of
    Lemma 1, algorithms 1 and 2. The derivative by ω is ours.

    Deviations from the authors' code: (1) every inner step descends on the proximal objective; theirs takes K plain
    steps and then a single one along the proximal term, so that it does not arrive at θ*. (2) The system is the
    paper's; their call passes the damping in the place of a regularisation, and by their defaults solves with
    2I + H/(λ + 10). (3) No damping by default (theirs: 1), as it is not in the paper's formula. (4) Iterations are
    fixed in number and stop at indefinite directions; theirs stop at an absolute residual and divide by any curvature.

    `solver="torchopt"` differentiates through `torchopt.diff.implicit.custom_root` by `solve_cg`, always with a number
    of iterations: its default is 0 for a parameter without dimensions, whose gradient is then 0. Other faults remain:
    an indefinite system gets any answer (`longest` does not apply); every iteration waits for the device; it uses
    deprecated functions. On well-conditioned problems both agree up to rounding.

    >>> import torch
    >>> from gradhomog import TaskBatch
    >>> _ = torch.manual_seed(0)
    >>> learner = IMAML(torch.nn.Linear(1, 8), torch.nn.Linear(8, 1), inner_lr=0.05, inner_steps=20, proximal=2.0)
    >>> x = torch.linspace(-1, 1, 5)[:, None].repeat(3, 1, 1)
    >>> report = learner.step(TaskBatch(x, torch.sin(x), x, torch.sin(x)), torch.optim.Adam(learner.parameters()))
    >>> tuple(report.cosines.shape)
    (3, 3)
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        inner: Inner = "sgd",
        inner_lr: float = 0.1,
        inner_steps: int = 16,
        test_steps: int | None = None,
        proximal: float = 2.0,
        cg_steps: int = 5,
        damping: float = 0.0,
        longest: float = 2.0,
        solver: Solver = "own",
        adapt: str | Sequence[str] = "*",
        norm: Norm = "batch",
        engine: Engine = "auto",
        compile: Compile = False,
        autocast: Autocast = None,
        loss: Any = None,
    ) -> None:
        super().__init__(encoder, head, homogenizers, loss, norm, engine, compile, autocast)
        self.inner_steps, self.test_steps = check_steps(inner_steps, test_steps)
        _check(proximal, cg_steps, damping, longest, solver)
        if solver == "torchopt":
            self._check_torchopt()
        self.proximal, self.cg_steps, self.damping, self.longest = proximal, cg_steps, damping, longest
        self.solver = solver
        self._make_inner = resolve(inner, inner_lr)
        self._adapted = choose(list(self.network.parameters()), adapt, "adapt")

    def _check_torchopt(self) -> None:
        self.loop_only("`solver` 'torchopt' works on")
        if any(member.homogenizer.overrides("attach") for member in self.homogenizers.members):
            raise OptionError(
                "`solver` 'torchopt' runs the encoder on the support set again after the queries, but a homogenizer "
                "that is attached to it may act otherwise then. Use solver='own'."
            )

    def row(self, meta: Parameters, episode: Episode) -> TaskRow:
        adapted, others, encoded = self._solved(meta, episode, self.inner_steps)
        if self.solver == "torchopt":
            loss = support_loss(self, episode, {})
            arrive = custom_root.differentiable(loss, adapted, self.proximal, self.damping, self.cg_steps)
            with custom_root.deprecations_unheard():
                return query_row(self, episode, dict(meta), arrive)
        # Before the encoder turns to the queries: what homogenizers have attached to it is then still the same.
        hessian = episode.calculus.hessian(support_loss(self, episode, others, encoded), adapted) if adapted else None
        mixed = None
        if others and adapted:
            mixed = episode.calculus.hessian(support_loss(self, episode, {}), {**others, **adapted})
        found = query_row(self, episode, episode.calculus.leaf({**others, **adapted}), lambda point: point)
        slopes = filled(found.gradients, meta)
        rows = dict(slopes)
        if hessian is not None:
            rows |= self._implicit(hessian, {name: slopes[name] for name in adapted})
        if mixed is not None:
            crossed = mixed({**rows, **{name: torch.zeros_like(tensor) for name, tensor in others.items()}})
            rows |= {name: slopes[name] - crossed[name] / self.proximal for name in others}
        found.gradients = rows
        return found

    def outputs(self, meta: Parameters, episode: Episode) -> Tensor:
        with torch.enable_grad():  # the inner loop differentiates, whatever the caller's mode is
            adapted, others, _ = self._solved(meta, episode, self.test_steps)
        return query_outputs(self, episode, {**others, **adapted})

    def _solved(
        self, meta: Parameters, episode: Episode, steps: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor | None]:
        """θ* after some steps, the parameters that are not adapted, and, if steps do not change them, the support
        features; all constants."""
        start, others = divided(constants(meta), self._adapted)
        descent = Descent.start(self._make_inner(), start)
        episode.begin("support")
        encoded = encoded_once(self, start, others, episode)
        loss = support_loss(self, episode, others, encoded)
        for _ in range(steps if start else 0):
            here = episode.calculus.leaf(descent.parameters)
            slopes = episode.calculus.gradient(loss, here, False)
            pulled = {name: slopes[name] + self.proximal * (here[name].detach() - start[name]) for name in here}
            descent = descent.at(here).step(pulled, False)
        return constants(descent.parameters), others, encoded

    def _implicit(self, hessian: Operator, slopes: dict[str, Tensor]) -> dict[str, Tensor]:
        """((1 + δ)I + H/λ)⁻¹ applied to a gradient."""

        def operator(vector: dict[str, Tensor]) -> dict[str, Tensor]:
            curved = hessian(vector)
            return {name: (1 + self.damping) * v + curved[name] / self.proximal for name, v in vector.items()}

        solution = conjugate_gradients.solve(operator, slopes, iterations=self.cg_steps, longest=self.longest)
        return solution.tensors


def _check(proximal: float, cg_steps: int, damping: float, longest: float, solver: Solver) -> None:
    """Raises OptionError."""
    if not 0 < proximal < float("inf"):
        raise OptionError(f"`proximal` must be positive and finite; got {proximal!r}.")
    if not isinstance(cg_steps, int) or isinstance(cg_steps, bool) or cg_steps < 1:
        raise OptionError(f"`cg_steps` must be an integer of at least 1; got {cg_steps!r}. For first order: `fomaml`.")
    if not 0 <= damping < float("inf"):
        raise OptionError(f"`damping` must be finite and not negative; got {damping!r}.")
    if not longest >= 1:
        raise OptionError(f"`longest` must be at least 1, the length of the query gradient; got {longest!r}.")
    if solver not in ("own", "torchopt"):
        raise OptionError(f"`solver` must be 'own' or 'torchopt'; got {solver!r}.")


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=IMAML,
        summary="learns an initialisation by the implicit gradient of a proximal inner problem",
        reference="Rajeswaran et al. 2019, arXiv 1909.04630",
    )
