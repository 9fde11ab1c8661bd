"""SAGO: in each coordinate the auxiliary gradient where its sign is the primary gradient's, else the primary one."""

from typing import Literal

import torch
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Jacobian, Step, hookimpl
from gradhomog_plugins import _columns
from gradhomog_plugins._primary import Primary, primary_tasks


class SAGO(Homogenizer):
    """Protect a primary task in each coordinate: no entry of the direction has the opposite sign of its gradient.

        g_0 the mean of the primary rows, K the number of auxiliary rows, in each coordinate p:
        auxiliary: d_p = 1/K Σ_j (g_jp where g_jp g_0p > 0 or g_0p = 0, else g_0p)
        both:      d_p = 1/N (Σ_r g_rp + Σ_j [g_jp g_0p ≥ 0] g_jp),  r the primary and j the auxiliary tasks;
                   paper's scale: without 1/N

    Args:
        primary: the slot or the domain of the primary task. Every batch must have it.
        agreeing: the entry where the signs agree: `"auxiliary"` is the paper's, with the auxiliary row alone; `"both"`
            is the mean of all rows without the conflicting auxiliary entries.

    Use it when one task must not become worse and another is learned beside it, such as retaining what a model can do
    while a part of it is forgotten: ⟨g_0, d⟩ ≥ 0, in each coordinate and hence in any diagonal metric, such as Adam's.
    It is harmful where the tasks matter equally: an auxiliary task has no protection. With `"auxiliary"` the primary
    gradient matters by its sign alone wherever the signs agree, so an auxiliary row that is noise determines half of
    the coordinates, and a short one slows the primary task. The result depends on the coordinates: a rotation of the
    parameters changes it.

    The direction is a function of the loss weights: set them by `static` before it. Several primary tasks, of one
    domain, count as their mean g_0, and are not protected one by one. Without an auxiliary task, d = g_0. An auxiliary
    row that is zero has no sign to agree with: it counts as g_0 with `"auxiliary"`, and as zero with `"both"`. If g_0
    is zero, d is the mean of the auxiliary rows (`"both"`: of all rows). Opposite rows give g_0 (`"both"`: g_0/N). The
    direction is not a linear combination of the rows: all rows are replaced by it.

    Differentiable in the rows, with the signs as constants.

    State: none.

    Cost: two reads of the rows in blocks that fit the cache, and the memory of two directions.

    Source: Xiao et al. 2026, "Modeling LLM Unlearning as an Asymmetric Two-Task Learning Problem", arXiv 2604.14808;
    the formula is that of the authors' code (`sago`, and for `"both"` `sago_prefer_retain`), in which the retained task
    is primary and the forgotten task auxiliary.

    Deviations: (1) Any number of tasks; the paper has two. Each auxiliary row is compared with g_0; to compare the sum
    of the auxiliary gradients, pass the sum of their losses as one loss. (2) An auxiliary entry that is zero gives way
    to g_0 with `"auxiliary"`. In the authors' code zero agrees with every sign, and a parameter that the auxiliary
    loss does not depend on is never trained. (3) Differentiable.

    >>> import torch, gradhomog
    >>> rows = torch.tensor([[1.0, 1.0, 0.0], [3.0, -5.0, 2.0]])
    >>> gradhomog.pipeline("sago").combine(rows)
    tensor([3., 1., 2.])
    >>> gradhomog.pipeline("sago(agreeing='both')").combine(rows)
    tensor([2.0000, 0.5000, 1.0000])
    """

    def __init__(self, primary: Primary = 0, agreeing: Literal["auxiliary", "both"] = "auxiliary") -> None:
        self.primary, self.agreeing = primary, agreeing

    def rows(self, step: Step) -> Jacobian:
        primary = primary_tasks(self.primary, step, "a task in every batch").tolist()
        return _columns.reduce_columns(
            step.jacobian, lambda block: protect(block.to(_columns.wide_dtype(block)), primary, self.agreeing)
        )

    def paper_scale(self, step: Step) -> float:
        return step.tasks if self.agreeing == "both" else 1


def protect(rows: Tensor, primary: list[bool], agreeing: Literal["auxiliary", "both"]) -> Tensor:
    """Return d for rows `[tasks, columns]`, of which those with True in `primary` are primary: `[columns]`.

    >>> protect(torch.tensor([[2.0, 2.0], [4.0, -4.0]]), [True, False], "auxiliary")
    tensor([4., 2.])
    """
    protected = torch.stack([row for row, is_primary in zip(rows, primary, strict=True) if is_primary])
    main = _columns.column_means(protected)
    if all(primary):
        return main
    auxiliary = torch.stack([row for row, is_primary in zip(rows, primary, strict=True) if not is_primary])
    agreement = auxiliary.detach().sign() * main.detach().sign()  # of signs: products of entries may underflow
    if agreeing == "both":
        return _columns.column_means(torch.cat([protected, torch.where(agreement >= 0, auxiliary, 0.0)]))
    return _columns.column_means(torch.where((agreement > 0) | (main == 0), auxiliary, main))


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=SAGO,
        summary="protects a primary task: takes other gradients only in coordinates where they agree in sign",
        reference="Xiao et al. 2026, arXiv 2604.14808",
        traits={"differentiable", "scale_equivariant"},
        needs={"jacobian"},
    )
