"""Reproduce Table 1 of DCGD and ConFIG's Burgers notebook, with tuned static weights as a further row.

Sources: Hwang and Lim 2024 (arXiv 2409.18426); Liu, Chu and Thuerey 2024 (arXiv 2408.11104).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradhomog
from gradhomog.experiments.execution.monitor import Progress
from gradhomog.experiments.reproduce.execute import Outcome, compute_parts
from gradhomog.experiments.reproduce.pinn.columns import COLUMNS, SCALES, Column, PinnSettings, Scale, parts
from gradhomog.experiments.reproduce.pinn.report import write_page
from gradhomog.experiments.reproduce.pinn.table import Cell, Table, collect

__all__ = [
    "COLUMNS", "SCALES", "Cell", "Column", "PinnSettings", "Scale", "Table", "collect", "parts", "reproduce_pinn",
]  # fmt: skip

CONTENTS = "Physics-informed networks: Table 1 of DCGD (Hwang and Lim 2024), and the Burgers notebook of ConFIG"


def reproduce_pinn(
    settings: PinnSettings,
    out: Path,
    *,
    resume: bool = False,
    progress: Progress = lambda record: None,
    jobs: int = 1,
    executor: str = "local",
) -> Outcome[Table]:
    """Compute every comparison that has no result, write the report, and return the table of all.

    Args:
        settings: the scale, and the chosen columns and rows.
        out, resume, progress, jobs, executor: as in `reproduce`.

    Raises:
        ConfigError, KeyboardInterrupt: as in `reproduce`.
    """
    planned = parts(settings)

    def report(description: dict[str, Any]) -> Table:
        table = collect(planned, out)
        write_page(table, description, out)
        return table

    content = {
        "experiment": "pinn",
        "contents": CONTENTS,
        "scale": settings.scale,
        "scale_summary": SCALES[settings.scale].summary,
        "targets": list(settings.targets),
        "methods": list(settings.methods),
        "overrides": list(settings.overrides),
        "version": gradhomog.__version__,
    }
    return compute_parts(planned, content, report, out, resume=resume, progress=progress, jobs=jobs, executor=executor)
