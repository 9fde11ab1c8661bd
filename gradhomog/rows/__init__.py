"""Jacobians: the task gradients of one step, one row per task, without a copy of the gradients."""

from gradhomog.rows.arithmetic import all_finite
from gradhomog.rows.dense import DenseRows
from gradhomog.rows.jacobian import Jacobian, as_jacobian, jacobian_of_rows
from gradhomog.rows.lazy import LazyRows
from gradhomog.rows.per_task import PerTaskRows
from gradhomog.rows.storage import Direction, Rows, StoredRows

__all__ = [
    "DenseRows",
    "Direction",
    "Jacobian",
    "LazyRows",
    "PerTaskRows",
    "Rows",
    "StoredRows",
    "all_finite",
    "as_jacobian",
    "jacobian_of_rows",
]
