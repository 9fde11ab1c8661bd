"""Experiments of papers: tables and figures with our numbers, the papers' numbers, and the differences.

A paper is a TOML file, see `paper`. An experiment is a list of comparisons, see `plan`; their results are one table.
"""

from gradhomog.experiments.reproduce.comparisons import Part, Settings, image_size, parts
from gradhomog.experiments.reproduce.data_sources import find_domains
from gradhomog.experiments.reproduce.execute import Reproduction, describe, reproduce
from gradhomog.experiments.reproduce.paper_schema import Paper, parse_paper, read_experiment
from gradhomog.experiments.reproduce.report import text_table
from gradhomog.experiments.reproduce.results import Result, Results, collect

__all__ = [
    "Paper",
    "Part",
    "Reproduction",
    "Result",
    "Results",
    "Settings",
    "collect",
    "describe",
    "find_domains",
    "image_size",
    "parse_paper",
    "parts",
    "read_experiment",
    "reproduce",
    "text_table",
]
