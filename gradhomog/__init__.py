"""Gradient homogenization for meta-learning and multi-task learning.

A learner maps tasks to a Jacobian, one gradient per task; homogenizers change it before the step. Public names are
imported at their first use, so that `import gradhomog` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradhomog._version import __version__ as __version__

if TYPE_CHECKING:
    from gradhomog import keyed
    from gradhomog.autograd.accumulation import accumulated
    from gradhomog.autograd.backward import backward
    from gradhomog.autograd.donated_buffers import disable_donated_buffers
    from gradhomog.autograd.loss import loss
    from gradhomog.autograd.task_features import TaskFeatures, task_features
    from gradhomog.conflict import conflict_rate, cosines, distance_bound, distances, magnitude_similarity
    from gradhomog.device_copies import to_device
    from gradhomog.diagnosis.diagnosis import Diagnosis
    from gradhomog.diagnosis.result import DiagnosisResult
    from gradhomog.domains import Domain, Split, domain
    from gradhomog.ensemble import Ensemble
    from gradhomog.errors import (
        AmbiguousPluginError,
        ConfigError,
        ConvergenceWarning,
        DataError,
        DisabledPluginError,
        ExpressionError,
        GradhomogError,
        MomentumWarning,
        NonfiniteError,
        NotDifferentiableError,
        OptionError,
        PluginError,
        PluginLoadError,
        PluginRunError,
        RankError,
        UnknownPluginError,
    )
    from gradhomog.homogenizer import Homogenizer
    from gradhomog.hooks import hookimpl
    from gradhomog.jacobian import Jacobian, as_jacobian, jacobian_of_rows
    from gradhomog.learners import Learner, learner
    from gradhomog.outer_optimizer import warn_of_momentum
    from gradhomog.pipelines import Pipeline, pipeline
    from gradhomog.ranks.ranks import Ranks
    from gradhomog.registry import PluginInfo, Registry, available
    from gradhomog.reports import Evaluation, StageReport, StepReport, TaskRow, TaskRows
    from gradhomog.solvers import (
        Solution,
        bargaining_weights,
        conflict_averse_weights,
        dual_cone_weights,
        gramian_rounding,
        minimum_norm_weights,
    )
    from gradhomog.specs import DomainSpec, HomogenizerSpec, LearnerSpec, ObserverSpec
    from gradhomog.square_root import safe_sqrt
    from gradhomog.step import StageResult, Step
    from gradhomog.task_dataset import TaskDataset
    from gradhomog.task_key import TaskKey
    from gradhomog.tasks import Task, TaskBatch

_EXPORTS = {
    "autograd.accumulation": ("accumulated",),
    "autograd.backward": ("backward",),
    "autograd.donated_buffers": ("disable_donated_buffers",),
    "autograd.loss": ("loss",),
    "autograd.task_features": ("TaskFeatures", "task_features"),
    "conflict": ("conflict_rate", "cosines", "distance_bound", "distances", "magnitude_similarity"),
    "device_copies": ("to_device",),
    "diagnosis.diagnosis": ("Diagnosis",),
    "diagnosis.result": ("DiagnosisResult",),
    "domains": ("Domain", "Split", "domain"),
    "ensemble": ("Ensemble",),
    "errors": (
        "AmbiguousPluginError",
        "ConfigError",
        "ConvergenceWarning",
        "DataError",
        "DisabledPluginError",
        "ExpressionError",
        "GradhomogError",
        "MomentumWarning",
        "NonfiniteError",
        "NotDifferentiableError",
        "OptionError",
        "PluginError",
        "PluginLoadError",
        "PluginRunError",
        "RankError",
        "UnknownPluginError",
    ),
    "homogenizer": ("Homogenizer",),
    "hooks": ("hookimpl",),
    "jacobian": ("Jacobian", "as_jacobian", "jacobian_of_rows"),
    "learners": ("Learner", "learner"),
    "outer_optimizer": ("warn_of_momentum",),
    "pipelines": ("Pipeline", "pipeline"),
    "ranks.ranks": ("Ranks",),
    "registry": ("PluginInfo", "Registry", "available"),
    "reports": ("Evaluation", "StageReport", "StepReport", "TaskRow", "TaskRows"),
    "square_root": ("safe_sqrt",),
    "solvers": (
        "Solution",
        "bargaining_weights",
        "conflict_averse_weights",
        "dual_cone_weights",
        "gramian_rounding",
        "minimum_norm_weights",
    ),
    "specs": ("DomainSpec", "HomogenizerSpec", "LearnerSpec", "ObserverSpec"),
    "step": ("StageResult", "Step"),
    "task_dataset": ("TaskDataset",),
    "task_key": ("TaskKey",),
    "tasks": ("Task", "TaskBatch"),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "AmbiguousPluginError",
    "ConfigError",
    "ConvergenceWarning",
    "DataError",
    "Diagnosis",
    "DiagnosisResult",
    "DisabledPluginError",
    "Domain",
    "DomainSpec",
    "Ensemble",
    "Evaluation",
    "ExpressionError",
    "GradhomogError",
    "Homogenizer",
    "HomogenizerSpec",
    "Jacobian",
    "Learner",
    "LearnerSpec",
    "MomentumWarning",
    "NonfiniteError",
    "NotDifferentiableError",
    "ObserverSpec",
    "OptionError",
    "Pipeline",
    "PluginError",
    "PluginInfo",
    "PluginLoadError",
    "PluginRunError",
    "RankError",
    "Ranks",
    "Registry",
    "Solution",
    "Split",
    "StageReport",
    "StageResult",
    "Step",
    "StepReport",
    "Task",
    "TaskBatch",
    "TaskDataset",
    "TaskFeatures",
    "TaskKey",
    "TaskRow",
    "TaskRows",
    "UnknownPluginError",
    "accumulated",
    "as_jacobian",
    "available",
    "backward",
    "bargaining_weights",
    "conflict_averse_weights",
    "conflict_rate",
    "cosines",
    "disable_donated_buffers",
    "distance_bound",
    "distances",
    "domain",
    "dual_cone_weights",
    "gramian_rounding",
    "hookimpl",
    "jacobian_of_rows",
    "keyed",
    "learner",
    "loss",
    "magnitude_similarity",
    "minimum_norm_weights",
    "pipeline",
    "safe_sqrt",
    "task_features",
    "to_device",
    "warn_of_momentum",
]


def __getattr__(name: str) -> Any:
    if name == "keyed":
        return importlib.import_module("gradhomog.keyed")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'gradhomog' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"gradhomog.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # cached as an attribute, which also replaces a submodule of this name
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
