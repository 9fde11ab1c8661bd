"""Agreement of rows that were computed again with the stored rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradhomog.experiments.analysis.statistics import mean_interval
from gradhomog.experiments.suite.results import Results, by_factor
from gradhomog.table import Table


def agreement(stored: Results, computed: Results) -> Table:
    """One row per method that both have: how many of its cells are equal, and how many within the stored interval."""
    counts: dict[str, list[int]] = {}
    for row, runs in computed.rows.items():
        if row not in stored:
            continue
        count = counts.setdefault(row[1], [0, 0, 0])
        before = by_factor(stored.rows[row])
        for factor, repeated in by_factor(runs).items():
            old, new = ([run.error for run in cell] for cell in (before[factor], repeated))
            count[0] += 1
            count[1] += old == new
            count[2] += old == new or _within(old, new)
    rows = [[method, *map(str, count)] for method, count in counts.items()]
    notes = (
        "A cell is a problem and a factor of the loss. Within: the new mean test error is in the 95 % interval of the "
        "stored one. Other processors round differently, and hundreds of steps amplify it.",
    )
    return Table(["method", "cells", "equal", "within"], rows, notes, empty="No stored row was computed again.")


def _within(old: Sequence[float], new: Sequence[float]) -> bool:
    interval, mean = mean_interval(old), math.fsum(new) / len(new)
    return interval.low <= mean <= interval.high
