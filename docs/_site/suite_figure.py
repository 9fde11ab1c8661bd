"""Figures of the suite: the regret over processor time, and over the factor of a loss."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradhomog.experiments.report.figures.style import GUIDE_LINE, colors, figure_style, make_panels, svg_text
from gradhomog.experiments.runs import PLAIN
from gradhomog.experiments.suite.problems import CHECKPOINTS, FACTORS
from gradhomog.experiments.suite.scores import Scores

LARGEST = 100
"""The largest regret over time in the figure, in percent."""


def draw(scores: Scores, methods: Sequence[str], path: Path) -> None:
    """Write an SVG: the median regret over problems of some methods, over time and over factors of a loss.

    The plain mean is drawn too; 0 is the best of 13 static weights after all steps.
    """
    with figure_style():
        figure, [[over_time, over_factor]] = make_panels(1, 2, 3.0)
        factors = sorted(FACTORS)
        for method, (color, dashes) in colors([PLAIN, *methods]).items():
            style: dict[str, Any] = {"color": color, "linestyle": dashes, "label": method}
            over_time.plot(*_over_time(scores, method), **style)
            over_factor.plot(
                factors, [100 * _median(scores, method, factor) for factor in factors], marker="o", **style
            )
        over_time.set(xlabel="processor time / that of the plain mean", ylabel="regret, %", xlim=(0, 2))
        over_factor.set(
            xlabel="factor of one loss", xscale="log", xticks=factors, xticklabels=[f"{x:g}" for x in factors]
        )
        over_factor.minorticks_off()
        over_time.set_ylim(top=LARGEST)  # the first checkpoints are not of interest
        for axes in (over_time, over_factor):
            axes.axhline(0, **GUIDE_LINE)
        figure.legend(*over_factor.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    path.write_text(svg_text(figure), encoding="utf-8")


def _over_time(scores: Scores, method: str) -> tuple[list[float], list[float]]:
    """Time over that of the plain mean, and the median regret in percent, at each checkpoint."""
    regrets = [
        float(np.median([
            np.mean([run.errors[index] for run in scores.runs(problem, method)])
            / np.mean([run.error for run in scores.best_static(problem)]) - 1
            for problem in scores.problems
        ]))
        for index in range(len(CHECKPOINTS))
    ]  # fmt: skip
    return [scores.mean_time(method) * share for share in CHECKPOINTS], [100 * regret for regret in regrets]


def _median(scores: Scores, method: str, factor: float) -> float:
    regrets = [scores.regret(problem, method, factor) for problem in scores.problems]
    return float(np.median([regret.mean for regret in regrets if regret is not None]))
