"""The bridge to TorchJD: any of its aggregators as a homogenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gradhomog import Homogenizer, HomogenizerSpec, hookimpl
from gradhomog_plugins._torchjd.stages import bridge


def torchjd(
    aggregator: str = "UPGrad",
    options: Mapping[str, Any] = {},
    scale: Literal["mean", "paper"] = "mean",
    seed: int = 0,
) -> Homogenizer:
    """The direction is what an aggregator of the library TorchJD makes of the rows.

    d = A(J) / f(N)  (`scale="mean"`)  or  A(J)  (`scale="paper"`),  f(N) = A(1) for N rows of the one number 1

    Args:
        aggregator: the name of one of TorchJD's classes: `"AlignedMTL"`, `"CAGrad"`, `"ConFIG"`, `"Constant"`,
            `"DualProj"`, `"ExcessMTL"`, `"FairGrad"`, `"GradDrop"`, `"GradVac"`, `"IMTLG"`, `"Krum"`, `"MGDA"`,
            `"Mean"`, `"NashMTL"`, `"PCD"`, `"PCGrad"`, `"Random"`, `"Sum"`, `"TrimmedMean"`, `"UPGrad"`, and what
            later releases add.
        options: what the class is made with, by name. Where it takes a tensor, a list of numbers; where a projector, a
            table of options of `QuadprogProjector`. Where TorchJD has no default: CAGrad `c=0.4` and FairGrad
            `alpha=2.0`, as in their authors' scripts; NashMTL `n_tasks`, the tasks of the first step; `n_byzantine`
            of Krum, `trim_number` of TrimmedMean and `weights` of Constant have to be given.
        scale: see above. f(N) is asked of a fresh aggregator, once for each number of tasks.
        seed: of the generator that it draws from.

    For comparisons on equal terms, and as an oracle. The mathematics is TorchJD's, its thresholds included (UPGrad and
    DualProj are the mean, CAGrad is zero for rows that are all shorter than 0.01), and so is the cost; which promises
    of this library each aggregator keeps stands in docs/results/torchjd.md. What the bridge adds: random numbers come
    from a generator of its own and the global ones stay where they are; state, NashMTL's too, is saved whole; Gramians
    of half-precision rows are float32; NaN is an error.

    Not differentiable. State: the generator, and what the aggregator keeps: N² numbers of GradVac, N of PCD and
    NashMTL, and of ExcessMTL as many as the rows have. GradVac, PCD and ExcessMTL start again when the number of tasks
    changes, and NashMTL refuses to.

    Cost beside the aggregator's own: nothing for those whose weights depend on the number of tasks or on the Gramian.
    ExcessMTL, NashMTL, ConFIG, GradDrop and TrimmedMean read the rows as one matrix, which for a dict of several
    tensors is a copy of all of them; the last three give a direction that is no mixture of the rows, and then every row
    becomes that direction.

    Needs TorchJD (`pip install 'gradhomog[compare]'`), imported when a homogenizer is made; some aggregators need
    solvers too and say which.

    Source: Quinton and Rey 2024, "Jacobian Descent for Multi-Objective Optimization", arXiv 2406.16232, and
    https://github.com/SimplexLab/TorchJD; the methods' own papers stand in the classes' documentation.

    >>> import torch, gradhomog
    >>> jacobian = torch.tensor([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]])
    >>> gradhomog.pipeline("torchjd(aggregator='IMTLG')").combine(jacobian)
    tensor([0.0767, 1.0000, 1.0000])
    """
    return bridge(aggregator, options, scale, seed)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=torchjd,
        summary="any aggregator of the library TorchJD: UPGrad, CAGrad, Nash-MTL, …",
        reference="Quinton and Rey 2024, arXiv 2406.16232",
        traits={"stateful", "stochastic"},
        needs={"gramian", "rows"},
    )
