"""Figures of a comparison; each function takes records or a summary and returns a figure, or None without data.

Matplotlib (the extra `plot`) is imported when the first figure is drawn. Its global state is not changed.
"""

from gradhomog.experiments.report.figures.saliency import saliency, saliency_omissions
from gradhomog.experiments.report.figures.scores import domain_scores, scores
from gradhomog.experiments.report.figures.stages import stages
from gradhomog.experiments.report.figures.style import (
    MissingMatplotlib,
    SavedFigure,
    require_matplotlib,
    save,
    svg_text,
)
from gradhomog.experiments.report.figures.training import conflict, validation, weights
from gradhomog.experiments.report.figures.trajectories import trajectories

__all__ = [
    "MissingMatplotlib",
    "SavedFigure",
    "conflict",
    "domain_scores",
    "require_matplotlib",
    "saliency",
    "saliency_omissions",
    "save",
    "scores",
    "stages",
    "svg_text",
    "trajectories",
    "validation",
    "weights",
]
