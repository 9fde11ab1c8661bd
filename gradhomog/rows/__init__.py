"""Rows: one gradient per task, read where they lie. What the host does with them, whatever form they have."""

from gradhomog.rows.combinations import mean, mix, weighted_mean
from gradhomog.rows.finiteness import all_finite, finite_tasks, which_finite
from gradhomog.rows.roots import safe_sqrt
from gradhomog.rows.statistics import block_gramians, block_squared_norms
from gradhomog.rows.structure import (
    AnyRows,
    Direction,
    Rows,
    any_repeated,
    blocks,
    detach,
    repeated,
    select,
    transform,
)
from gradhomog.rows.unformed import UnformedRows

__all__ = [
    "AnyRows",
    "Direction",
    "Rows",
    "UnformedRows",
    "all_finite",
    "any_repeated",
    "block_gramians",
    "block_squared_norms",
    "blocks",
    "detach",
    "finite_tasks",
    "mean",
    "mix",
    "repeated",
    "safe_sqrt",
    "select",
    "transform",
    "weighted_mean",
    "which_finite",
]
