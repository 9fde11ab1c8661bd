"""GradDrop: keep in each coordinate only the entries of one sign, which is chosen at random."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Interval, MinLen
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Jacobian, OptionError, Step, hookimpl, to_device
from gradhomog_plugins import _columns
from gradhomog_plugins._columns import wide_dtype

Share = Annotated[float, Interval(ge=0, le=1)]


class GradDrop(Homogenizer):
    """Keep in each coordinate only the positive or only the negative entries of the rows; the sign is random.

        P = ½ (1 + Σ_i g_i / Σ_i |g_i|),  f(P) = ½ + sharpness · (P − ½) within [0, 1],  U uniform in [0, 1)
        M_i = [g_i > 0] where U < f(P), else [g_i < 0]
        d = 1/N Σ_i (ℓ_i + (1 − ℓ_i) M_i) g_i;  paper's scale: the sum, N times as long

    Args:
        leak: ℓ in [0, 1], the share of a row that is never dropped: one number for all tasks, or a list by slot. A task
            with leak 1 is never dropped, for example the main task beside auxiliary tasks.
        sharpness: ≥ 1, the derivative of f at ½. With 1, f is the identity, and the probability of a sign is the share
            of its entries in Σ_i |g_i|; with a large value the sign of the sum is kept.
        on: `"parameters"`: coordinates are parameters. `"features"`, the layer of the paper: rows must be the gradients
            of the losses w.r.t. features z of one batch that all tasks share, `[tasks, batch, *features]`, as in
            `gradhomog.backward(losses, pipe, features=z, level="features")`. P is then that of G_i = Σ_batch sgn(z) ⊙
            ∇_z L_i, with one draw per feature, and an entry of the mask applies to the whole batch.
        seed: seed of the generator of U; the global generator is not used.

    Use it when the entries of the rows have different signs in many coordinates, so that they cancel in the mean. It
    does not balance norms: a long row determines P in most coordinates. The random mask adds noise to every step, and
    the result depends on the coordinates: a rotation of the parameters changes it.

    A coordinate that is zero in all rows gives zero; zero rows and single tasks need no exception. A draw depends on
    seed, step and number of coordinates, not on the rows, their dtype or device. The direction is not a linear
    combination of the rows: all rows are replaced by it.

    Differentiable in the rows, with the mask as a constant; an entry that is zero has the derivative of a kept entry.

    State: none.

    Cost: two reads of the rows in blocks that fit the cache, P random numbers for P parameters (drawn on the CPU), the
    memory of the direction and as much again for the temporaries of a block, which has at least 2¹² columns of the rows
    (with a graph: all of them). Measured: a third to a quarter of the time of TorchJD's GradDrop,
    docs/decisions/0023-rows-simple-forms.md.

    Source: Chen et al. 2020, "Just Pick a Sign", arXiv 2010.06808, equation 1 and algorithm 1.

    Deviations: (1) No epsilon beside Σ|g_i|. (2) On features, a task whose G_i is zero in a feature keeps that feature,
    as in the authors' code (lingvo) and unlike algorithm 1, so that tasks that agree are unchanged. (3) No rescaling:
    lingvo multiplies the result by its norm over that of Σ g_i, which its comment describes as keeping the norm, but it
    does the opposite; the paper has no such factor. (4) `sharpness` is lingvo's linear `keep_prob_function_scale`;
    values below 1, and its sigmoid, drop coordinates in which all tasks agree. (5) TorchJD has no layer on features,
    LibMTL none on parameters; SamsungLabs' code draws once per task instead of once per coordinate, and reverses the
    leak.

    >>> import torch, gradhomog
    >>> jacobian = torch.tensor([[3.0, 1.0, 2.0], [3.0, -1.0, -4.0]])
    >>> gradhomog.pipeline("graddrop").combine(jacobian)[0]  # all tasks agree on the first coordinate
    tensor(3.)
    """

    def __init__(
        self,
        leak: Share | Annotated[Sequence[Share], MinLen(1)] = 0.0,
        sharpness: Annotated[float, Ge(1)] = 1.0,
        on: Literal["parameters", "features"] = "parameters",
        seed: int = 0,
    ) -> None:
        self.leak, self.sharpness, self.on, self.seed = leak, sharpness, on, seed
        self.needs = {"jacobian", "features"} if on == "features" else {"jacobian"}

    def rows(self, step: Step) -> Jacobian:
        generator = step.generator
        direction = {
            name: self._on_features(step, rows, generator)
            if self.on == "features"
            else self._on_parameters(rows, generator)
            for name, rows in step.jacobian.by_parameter()
        }
        return step.jacobian.repeat(direction)

    def paper_scale(self, step: Step) -> float:
        return step.tasks

    def _on_parameters(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        # A block fits the cache, and its temporaries take no more memory than the direction.
        columns = min(_columns.COLUMNS, max(2**12, rows[0].numel() // (len(rows) + 8)))
        return _columns.join([self._drop_entries(block, generator) for block in _columns.split(rows, columns)], rows)

    def _drop_entries(self, matrix: Tensor, generator: torch.Generator) -> Tensor:
        wide = matrix.to(wide_dtype(matrix))
        uniform = to_device(torch.rand(wide.shape[1], generator=generator), wide.device, wide.dtype)
        return (drop(wide, uniform, self._leaks(wide), self.sharpness) / len(wide)).to(matrix.dtype)

    def _on_features(self, step: Step, rows: Tensor, generator: torch.Generator) -> Tensor:
        signs = step.features.sign()
        if (
            len(step.jacobian.names) != 1
            or rows.dim() < 3
            or signs.numel() != rows.numel()
            or signs.shape[1] != rows.shape[1]
            or not torch.equal(signs, signs[:1].expand_as(signs))
        ):
            raise OptionError(
                "`on` must be 'parameters' unless rows are gradients w.r.t. the features of one batch "
                f"that all tasks share, [tasks, batch, *features]; got rows {list(rows.shape)} and features "
                f"{list(signs.shape)}. Use gradhomog.backward with level='features', or on='parameters'."
            )
        tasks, batch = rows.shape[:2]
        wide = rows.reshape(tasks, batch, -1).to(wide_dtype(rows))
        sums = torch.einsum("tbf,bf->tf", wide, signs[0].reshape(batch, -1).to(wide))
        uniform = to_device(torch.rand(sums.shape[1], generator=generator), sums.device, sums.dtype)
        above, below = sums.clamp_min(0).sum(0), sums.clamp_max(0).sum(0)
        positive = positive_mask(above, below, uniform, self.sharpness).bool()
        kept = torch.where(positive, sums >= 0, sums <= 0).to(wide)
        leaks = self._leaks(wide)
        shares = kept if leaks is None else torch.lerp(kept, torch.ones_like(kept), leaks[:, None])
        return (torch.einsum("tbf,tf->bf", wide, shares) / tasks).to(rows.dtype).reshape(rows.shape[1:])

    def _leaks(self, rows: Tensor) -> Tensor | None:
        """Return ℓ `[tasks]`, or None without leak."""
        if self.leak == 0:
            return None
        leaks = to_device(torch.as_tensor(self.leak, dtype=rows.dtype), rows.device)
        if leaks.dim() and len(leaks) != len(rows):
            raise OptionError(
                f"`leak` must hold one number per task; got {len(leaks)} for {len(rows)} tasks. "
                "Give one number for all tasks, or do not use nonfinite='drop'."
            )
        return leaks.expand(len(rows))


def drop(rows: Tensor, uniform: Tensor, leak: Tensor | None = None, sharpness: float = 1.0) -> Tensor:
    """Return Σ_i (ℓ_i + (1 − ℓ_i) M_i) g_i for rows `[tasks, params]`, U `[params]` and ℓ `[tasks]`: `[params]`.

    >>> drop(torch.tensor([[3.0, 1.0], [3.0, -4.0]]), uniform=torch.tensor([0.9, 0.5]))
    tensor([ 6., -4.])
    """
    ones = rows.new_ones(len(rows))
    above, below = ones @ rows.clamp_min(0), ones @ rows.clamp_max(0)
    kept = positive_mask(above, below, uniform, sharpness)
    # Not `torch.where`: it takes ten times as long (mispredicted branches) and would hide infinity in dropped entries.
    if leak is None:
        return torch.lerp(below, above, kept)
    return leak @ rows + torch.lerp((1 - leak) @ rows.clamp_max(0), (1 - leak) @ rows.clamp_min(0), kept)


def positive_mask(above: Tensor, below: Tensor, uniform: Tensor, sharpness: float) -> Tensor:
    """Return 1 where U < f(P), else 0; `above` and `below` are the sums of the positive and of the negative entries.

    The inequality is multiplied by Σ|g_i|. Of the two sums, one is exactly zero where all tasks agree, so rounding
    never drops such a coordinate.
    """
    above, below = above.detach(), below.detach()
    # The sign of a difference, because a comparison, whose result is bool, takes three times as long.
    return (sharpness * (above + below) - (2 * uniform - 1) * (above - below)).sign().clamp_min(0)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=GradDrop,
        summary="keeps in each coordinate only the entries of one sign, which is chosen at random",
        reference="Chen et al. 2020, arXiv 2010.06808",
        traits={"differentiable", "stochastic", "permutation_equivariant", "scale_equivariant"},
        needs={"jacobian", "features"},
    )
