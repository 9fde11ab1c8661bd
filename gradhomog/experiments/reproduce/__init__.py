"""The experiments of the RotoGBML paper (Zhang et al. 2023, arXiv 2303.06679) on the user's copy of its data; `pinn`.

An experiment is a list of comparisons, one for each column of a table and each learner. Their results are collected
into one table with our number, the paper's number, and the difference.
"""

from gradhomog.experiments.reproduce.data_sources import find_domains
from gradhomog.experiments.reproduce.execute import Reproduction, describe, reproduce
from gradhomog.experiments.reproduce.experiments import EXPERIMENTS, Part, image_size, parts
from gradhomog.experiments.reproduce.protocol import NAMES
from gradhomog.experiments.reproduce.scales import SCALES, Scale
from gradhomog.experiments.reproduce.settings import Settings
from gradhomog.experiments.reproduce.table import Cell, Table, collect

__all__ = [
    "EXPERIMENTS",
    "NAMES",
    "SCALES",
    "Cell",
    "Part",
    "Reproduction",
    "Scale",
    "Settings",
    "Table",
    "collect",
    "describe",
    "find_domains",
    "image_size",
    "parts",
    "reproduce",
]
