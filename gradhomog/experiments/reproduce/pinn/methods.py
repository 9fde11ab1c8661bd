"""Pipelines of the rows of the PINN tables, by title."""

from __future__ import annotations

from collections.abc import Mapping

from gradhomog.experiments.config.suites import pinn_static
from gradhomog.experiments.reproduce.methods import Row

PLAIN = "Adam"
"""The row of the plain network."""

TWO_LOSSES: Mapping[str, str] = {
    PLAIN: "none",
    "LRA": "lra",
    "NTK": "ntk",
    "PCGrad": "pcgrad",
    "MGDA": "mgda",
    "CAGrad": "cagrad",
    "Aligned-MTL": "aligned_mtl",
    "MultiAdam": 'multiadam(units="paper")',
    "DCGD": 'dcgd(variant="center")',
    "ConFIG": "config",
    "UPGrad": "upgrad",
    "static (tuned)": pinn_static(),
}
"""Pipelines by title, for two losses and Adam with β₁ = 0.9.

LRA and NTK have the forms of their authors' codes. MultiAdam is an optimizer; its step with β₁ = 0, followed by Adam,
is its authors' option `agg_momentum` with `betas=(0, 0.99)` and `agg_betas=(0.9, 0.999)`. With β₁ = 0.99 it would have
to be followed by SGD, which comparisons do not have; Adam with β₁ = 0 would divide the averaged step by its root mean
square again.
"""

TWO_LOSSES_TRACKED: Mapping[str, str] = {
    "M-ConFIG": 'tracked(method="config")',
    "tracked UPGrad": 'tracked(method="upgrad")',
}
"""Methods on averages of rows, for Adam with β₁ = 0: a second average would double the delay."""

THREE_LOSSES: Mapping[str, str] = {
    PLAIN: "none",
    "ConFIG": "config",
    "UPGrad": "upgrad",
    "static (tuned)": pinn_static(2),
}
"""Pipelines by title, for the three losses of ConFIG's notebook."""

THREE_LOSSES_TRACKED = TWO_LOSSES_TRACKED

TITLES = tuple(dict.fromkeys([*TWO_LOSSES, *TWO_LOSSES_TRACKED, *THREE_LOSSES]))
"""Titles of all rows, in the order of the table."""


def rows(pipelines: Mapping[str, str], column: str, problem: str) -> list[Row]:
    """The rows of a comparison; the learner of a multi-task problem has its name."""
    return [Row(title, problem, pipeline, column) for title, pipeline in pipelines.items()]
