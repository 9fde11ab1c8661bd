"""MGDA: the shortest vector in the convex hull of the gradients."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, OptionError, hookimpl, minimum_norm_weights


class MGDA(Homogenizer):
    """The common descent direction of least norm: d = Σ_i α_i g_i, α = argmin ‖Σ_i α_i g_i‖² over α ≥ 0, Σα = 1.

    ⟨d, g_i⟩ ≥ ‖d‖² for every task, with equality where α_i > 0; d = 0 if and only if the point is Pareto stationary.

    Args:
        normalize: solve for rows divided by `"l2"`: their norm; `"loss"`: their task's loss; `"loss+"`: both; then
            weigh the rows as given. `"none"` is the method of the paper. Where dependent rows leave several sets of
            weights that are shortest after division, which of them is taken depends on the tasks' order.
        zero_rows: `"keep"`: a zero row makes d = 0, as theory says (that task is at a minimum, so no direction improves
            all); `"drop"`: leave it out, for tasks that are masked in a batch.
        scale: accepted for uniformity; Σα = 1 means N identical rows give that row in both.

    Differentiable in the rows (and losses) wherever the set of tasks with α_i > 0 does not change. State: none.
    Exact: KKT residual below 1e-12 relative to the norms, for norms spread over eight orders of magnitude and for
    dependent rows; see `minimum_norm_weights`.

    Source: Désidéri 2012 (doi 10.1016/j.crma.2012.03.014); Sener and Koltun 2018, arXiv 1810.04650, algorithm 2;
    `normalize` is the option of their code that the paper leaves out.

    Deviations: an exact active-set solver. The authors' code stops at 250 Frank–Wolfe steps and gives dominated tasks
    0.1 %; Frank–Wolfe with TorchJD 0.18's defaults returns vectors up to 4.3 times too long for 32 tasks whose norms
    spread from 0.1 to 10 (measured).

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("mgda").combine(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    tensor([0.4000, 0.8000])
    """

    def __init__(
        self,
        normalize: Literal["none", "l2", "loss", "loss+"] = "none",
        zero_rows: Literal["keep", "drop"] = "keep",
        scale: Literal["mean", "paper"] = "mean",
    ) -> None:
        self.normalize, self.zero_rows, self.scale = normalize, zero_rows, scale

    def mix(self, evidence: Evidence) -> Tensor:
        gramian = evidence.gramian()
        index = torch.arange(evidence.tasks, device=gramian.device)
        if self.zero_rows == "drop":
            index = torch.nonzero(gramian.diagonal() > 0).flatten()
            if len(index) == 0:
                return torch.ones_like(gramian.diagonal())
        factors = self._factors(evidence, gramian)
        shares = minimum_norm_weights((factors[:, None] * gramian * factors)[index][:, index])
        return torch.zeros_like(gramian[0]).index_put((index,), evidence.tasks * shares)

    def _factors(self, evidence: Evidence, gramian: Tensor) -> Tensor:
        """What each row is multiplied by before the program is solved, `[tasks]`."""
        factors = torch.ones_like(gramian[0])
        if self.normalize in ("l2", "loss+"):
            squares = gramian.diagonal()
            # One instead of zero before the root: its derivative at zero is infinite.
            factors = factors / torch.where(squares > 0, squares, torch.ones_like(squares)).sqrt()
        if self.normalize in ("loss", "loss+"):
            losses = evidence.losses.to(gramian.device)
            if not bool((losses > 0).all()):
                raise OptionError(
                    f"mgda: `normalize={self.normalize!r}` divides by the losses, which must be positive; "
                    f"got {losses.tolist()}."
                )
            factors = factors / losses
        return factors


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=MGDA,
        summary="the shortest vector in the convex hull of the gradients",
        reference="Désidéri 2012, doi 10.1016/j.crma.2012.03.014; Sener and Koltun 2018, arXiv 1810.04650",
        traits={
            "differentiable",
            "permutation_equivariant",
            "scale_equivariant",
            "rotation_equivariant",
            "non_conflicting",
        },
        needs={"gramian", "losses"},
    )
