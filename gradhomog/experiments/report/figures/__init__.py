"""Figures of a comparison; each function takes records or a summary and returns a figure, or None without data.

Matplotlib (the extra `plot`) is imported when the first figure is drawn. Its global state is not changed.
"""

from gradhomog.experiments.report.figures.saliency import saliency as saliency
from gradhomog.experiments.report.figures.scores import scores as scores
from gradhomog.experiments.report.figures.style import MissingMatplotlib as MissingMatplotlib
from gradhomog.experiments.report.figures.style import require_matplotlib as require_matplotlib
from gradhomog.experiments.report.figures.style import save as save
from gradhomog.experiments.report.figures.style import svg_text as svg_text
from gradhomog.experiments.report.figures.training import conflict as conflict
from gradhomog.experiments.report.figures.training import stages as stages
from gradhomog.experiments.report.figures.training import validation as validation
from gradhomog.experiments.report.figures.training import weights as weights
from gradhomog.experiments.report.figures.trajectories import trajectories as trajectories
