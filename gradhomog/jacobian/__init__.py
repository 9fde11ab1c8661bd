"""Jacobians: the task gradients of one step, one row per task, without a copy of the gradients."""

from gradhomog.jacobian.arithmetic import all_finite
from gradhomog.jacobian.as_jacobian import as_jacobian
from gradhomog.jacobian.jacobian import (
    DenseJacobian,
    Direction,
    Jacobian,
    MixedJacobian,
    RepeatedJacobian,
)
from gradhomog.jacobian.per_task import PerTaskJacobian, jacobian_of_rows

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
