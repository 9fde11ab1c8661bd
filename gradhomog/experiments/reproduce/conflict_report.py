"""Measurements of the conflict of domains as tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradhomog.diagnosis.estimates import UNRESOLVED, interval
from gradhomog.experiments.reproduce.measure_conflict import DomainConflict, StageConflict
from gradhomog.table import NOTHING, Table

NOTES = (
    "± is half of a 95 % interval (jackknife over batches). The first line of a step is without homogenizers.",
    f"{NOTHING}: a domain has no row in the measured batches. Measure more batches.",
    "norm ratio: largest / smallest mean norm of a domain. Cosines are means over pairs of different domains.",
    "cosine of E g: of the expected gradients, without noise; all domains pooled, weighted by their norms.",
    f"{UNRESOLVED}: the norm of an expected gradient cannot be distinguished from 0. Measure more batches.",
    "signal: ‖E g‖² / E‖g‖². conflict: pairs of rows of one batch with a negative inner product.",
    "independent: the same for rows of different batches, so by independent noise around the E g.",
    "if aligned: by noise alone if the E g had the same direction; mean over resolved pairs, normal approximation.",
    "distance: the largest distance of two rows / 2 G, with G the largest norm (Theorem 4.1, total variation 1).",
)


def render(points: Sequence[DomainConflict], remarks: Sequence[str] = ()) -> str:
    """All points as one table, the last point by domain and by pair of domains, and notes, with `remarks` first."""
    last = points[-1]
    title = f"Gradients of {len(last.domains)} domains, {last.batches} batches: {', '.join(last.domains)}"
    parts = [title, *stage_table(points).lines(), "", f"After {last.step} steps, by domain:"]
    parts += [*domain_table(last).lines(), "", f"After {last.step} steps, cosines by pair of domains:"]
    return "\n".join([*parts, *pair_table(last).lines(), "", *remarks, *NOTES])


def stage_table(points: Sequence[DomainConflict]) -> Table:
    """One row per point and stage."""
    header = ["step", "rows", "norm ratio", "cosine", "cosine of E g", "signal %", "conflict %", "independent %"]
    rows = []
    for point in points:
        for index, stage in enumerate(point.stages):
            single, expected = stage.single, stage.expected
            norms = single.norms.value
            aligned = expected.aligned_conflict_rates.value[~_diagonal(expected.cosines.value)].nanmean()
            rows.append(
                [
                    str(point.step) if index == 0 else "",
                    _label(index, stage),
                    NOTHING if norms.isnan().any() else f"{float(norms.max() / norms.min()):.2f}",
                    interval(single.mean_cosine),
                    interval(expected.pooled_cosine),
                    interval(expected.pooled_signal_fraction, percent=True),
                    interval(single.conflict_rate, percent=True),
                    interval(single.independent_conflict_rate, percent=True),
                    UNRESOLVED if aligned.isnan() else f"{100 * float(aligned):.1f}",
                    f"{stage.largest_distance / stage.bound:.2f}" if stage.bound else NOTHING,
                ]
            )
    return Table([*header, "if aligned %", "distance"], rows)


def domain_table(point: DomainConflict) -> Table:
    """One row per domain, with norms and signal before and after all homogenizers."""
    ends = _ends(point)
    header = ["domain"]
    for when in ("", " after")[: len(ends)]:
        header += [f"‖g‖{when}", f"‖E g‖{when}", f"signal %{when}"]
    rows = []
    for index, name in enumerate(point.domains):
        cells = [name]
        for stage in ends:
            expected = stage.expected
            cells += [interval(stage.single.norms, index), interval(expected.norms, index)]
            cells.append(interval(expected.signal_fractions, index, percent=True))
        rows.append(cells)
    return Table(header, rows)


def pair_table(point: DomainConflict) -> Table:
    """One row per pair of domains, with cosines of rows and of expectations before and after all homogenizers."""
    ends = _ends(point)
    header = ["pair"]
    for when in ("", " after")[: len(ends)]:
        header += [f"rows{when}", f"E g{when}"]
    rows = []
    for i, first in enumerate(point.domains):
        for j in range(i + 1, len(point.domains)):
            cells = [f"{first}, {point.domains[j]}"]
            for stage in ends:
                cells += [interval(stage.single.cosines, i, j), interval(stage.expected.cosines, i, j)]
            rows.append(cells)
    return Table(header, rows)


def _ends(point: DomainConflict) -> list[StageConflict]:
    """The rows before and after all homogenizers."""
    return [point.stages[0], point.stages[-1]] if len(point.stages) > 1 else [point.stages[0]]


def _label(index: int, stage: StageConflict) -> str:
    return f"+ {stage.name}" if index else stage.name


def _diagonal(matrix: Tensor) -> Tensor:
    return torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
