"""Jacobians: the task gradients of one step, one row per task, without a copy of the gradients."""

from gradhomog.rows.arithmetic import all_finite
from gradhomog.rows.as_jacobian import as_jacobian
from gradhomog.rows.jacobian import (
    DenseJacobian,
    Direction,
    Jacobian,
    MixedJacobian,
    RepeatedJacobian,
)
from gradhomog.rows.per_task import PerTaskJacobian, jacobian_of_rows

__all__ = [
    "DenseJacobian",
    "Direction",
    "Jacobian",
    "MixedJacobian",
    "PerTaskJacobian",
    "RepeatedJacobian",
    "all_finite",
    "as_jacobian",
    "jacobian_of_rows",
]
