"""AND-mask: the mean of the rows in the coordinates in which enough of them have the same sign."""

from collections.abc import Callable
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Jacobian, Step, hookimpl
from gradhomog_plugins import _columns
from gradhomog_plugins._columns import column_means, wide_dtype

MaskedMean = tuple[Tensor, Tensor, Tensor]
"""The masked mean of columns, the sum of their mask, and the number of them in which a row is not zero."""


def masked_direction(jacobian: Jacobian, masked_mean: Callable[[Tensor], MaskedMean], rescale: bool) -> Jacobian:
    """Return N rows equal to m ∘ ḡ, or to r m ∘ ḡ with r = present / mask_sum of all tensors together.

    `masked_mean`: a function of `[tasks, columns]`.
    """
    means, sums, present = dict[str, Tensor](), list[Tensor](), list[Tensor]()
    for name, rows in jacobian.by_parameter():
        parts = [masked_mean(block.to(wide_dtype(block))) for block in _columns.split(rows)]
        block_means, block_sums, block_present = zip(*parts, strict=True)
        means[name] = _columns.join(block_means, rows)
        sums += block_sums
        present += block_present
    if rescale:
        mask_sum = torch.stack(sums).sum()
        factor = torch.stack(present).sum() / torch.where(mask_sum > 0, mask_sum, 1.0)  # zero masks have zero means
        means = {name: mean * factor.to(mean.dtype) for name, mean in means.items()}
    return jacobian.repeat({name: means[name].to(row.dtype) for name, row in jacobian.row_like().items()})


def sign_counts(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return |Σ_i sgn g_i| and the number of entries that are not zero, of each column of `[tasks, columns]`."""
    signs = rows.detach().sign()
    return signs.sum(dim=0).abs(), signs.abs().sum(dim=0)


class ANDMask(Homogenizer):
    """Set the coordinates of the mean to zero in which the signs of the rows do not agree.

        m_p = [ |1/N Σ_i sgn g_ip| ≥ τ ],  d_p = r m_p 1/N Σ_i g_ip
        r = 1, or with `rescale` the number of coordinates that are not zero in all rows, divided by Σ_p m_p

    Args:
        tau: τ in [0, 1]. With 1 all N entries must have one sign; with τ, at least (1 + τ)/2 of them if none is zero.
            0 is the plain mean.
        rescale: multiply d by r, so that the removed entries do not shorten it.

    Use it when each task is an environment (a hospital, a camera, a background) and what holds in only some of them
    should not be learned: domain generalization. It is harmful where tasks rightly differ, because exactly the
    coordinates that distinguish them stop learning. For pure noise a share of 1 − 2^(1 − N) of the coordinates is
    removed: half for two rows, 97 % for six. `rescale` multiplies the few that remain by a large number, so tune the
    learning rate again. The result depends on the coordinates: a rotation of the parameters changes it.

    An entry that is zero agrees with no sign. If no coordinate remains, d = 0, as for opposite rows or a zero row with
    τ = 1. A single task is unchanged. With τ = 1, d conflicts with no row. The direction is not a linear combination of
    the rows: all rows are replaced by it.

    Differentiable in the rows, with the mask as a constant.

    State: none.

    Cost: two reads of the rows in blocks that fit the cache, and the memory of two directions. Measured on one core at
    4 × 10⁶ float32 entries: 43 ms, where `trimmed_mean` takes 23 and `graddrop` 34.

    Source: Parascandolo et al. 2020, "Learning explanations that are hard to vary", arXiv 2009.00329, section 3.

    Deviations: (1) `rescale` has one r for all parameters. The paper has r = 1, the authors' code an option without
    default for one r per tensor, DomainBed always that, which makes the direction depend on how the parameters are
    divided into tensors, and multiplies a tensor with one agreeing entry by its number of entries. (2) Coordinates that
    are zero in all rows, such as those of inactive units, do not count in r; in both codes they count as removed, so
    that identical rows with zeros would be changed. (3) Both codes add 1e-10 to the share of kept coordinates.

    >>> import torch, gradhomog
    >>> jacobian = torch.tensor([[3.0, 1.0, 0.0, 2.0], [1.0, -1.0, 0.0, 4.0]])
    >>> gradhomog.pipeline("and_mask").combine(jacobian)
    tensor([2., 0., 0., 3.])
    >>> gradhomog.pipeline("and_mask(rescale=true)").combine(jacobian)  # two of three coordinates are kept
    tensor([3.0000, 0.0000, 0.0000, 4.5000])
    """

    def __init__(self, tau: Annotated[float, Interval(ge=0, le=1)] = 1.0, rescale: bool = False) -> None:
        self.tau, self.rescale = tau, rescale

    def rows(self, step: Step) -> Jacobian:
        # The smallest count with count/N ≥ τ, so that rounding of τN cannot decide.
        least = next(count for count in range(step.tasks + 1) if count / step.tasks >= self.tau)
        return masked_direction(step.jacobian, lambda block: agreed_mean(block, least), self.rescale)


def agreed_mean(rows: Tensor, least: int) -> MaskedMean:
    """Return the mean of each column of rows `[tasks, columns]` where |Σ_i sgn g_i| ≥ `least`, else zero.

    >>> agreed_mean(torch.tensor([[3.0, 1.0], [1.0, -1.0]]), least=2)[0]
    tensor([2., 0.])
    """
    balance, present = sign_counts(rows)
    mask = (balance >= least) & (present > 0)
    mean = torch.where(mask, column_means(rows), 0.0)
    return mean, mask.sum().double(), (present > 0).sum().double()


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=ANDMask,
        summary="the mean in the coordinates in which enough tasks have the same sign, zero elsewhere",
        reference="Parascandolo et al. 2020, arXiv 2009.00329",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant", "non_conflicting"},
        needs={"jacobian"},
    )
