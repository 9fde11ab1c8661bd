"""Experiments of papers: tables and figures with our numbers, the papers' numbers, and the differences.

A paper is a TOML file, see `paper`. An experiment is a list of comparisons, see `plan`; their results are one table.
"""

from gradhomog.experiments.reproduce.comparisons import Part as Part
from gradhomog.experiments.reproduce.comparisons import Settings as Settings
from gradhomog.experiments.reproduce.comparisons import find_domains as find_domains
from gradhomog.experiments.reproduce.comparisons import image_size as image_size
from gradhomog.experiments.reproduce.comparisons import parts as parts
from gradhomog.experiments.reproduce.execute import Reproduction as Reproduction
from gradhomog.experiments.reproduce.execute import describe as describe
from gradhomog.experiments.reproduce.execute import reproduce as reproduce
from gradhomog.experiments.reproduce.paper_schema import Paper as Paper
from gradhomog.experiments.reproduce.paper_schema import parse_paper as parse_paper
from gradhomog.experiments.reproduce.paper_schema import read_experiment as read_experiment
from gradhomog.experiments.reproduce.report import text_table as text_table
from gradhomog.experiments.reproduce.results import Result as Result
from gradhomog.experiments.reproduce.results import Results as Results
from gradhomog.experiments.reproduce.results import collect as collect
