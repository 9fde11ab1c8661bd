"""Jacobians: the task gradients of one step, one row per task, without a copy of the gradients."""

from gradhomog.rows.arithmetic import all_finite
from gradhomog.rows.jacobian import Jacobian, as_jacobian, check_real, jacobian_of_rows
from gradhomog.rows.storage import DenseRows, Direction, LazyRows, PerTaskRows, StoredRows

__all__ = [
    "DenseRows",
    "Direction",
    "Jacobian",
    "LazyRows",
    "PerTaskRows",
    "StoredRows",
    "all_finite",
    "as_jacobian",
    "check_real",
    "jacobian_of_rows",
]
