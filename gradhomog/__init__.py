"""Gradient homogenization for meta-learning and multi-task learning.

A learner turns tasks into rows, one gradient per task; a homogenizer makes the rows agree before the step is taken.
Names below are imported when first used, so that `import gradhomog` costs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradhomog.api import available, domain, learner, pipeline
    from gradhomog.conflict import conflict_rate, cosines, distance_bound, distances, magnitude_similarity
    from gradhomog.domains import Domain, Split
    from gradhomog.ensemble import Ensemble
    from gradhomog.errors import (
        AmbiguousPluginError,
        ConfigError,
        DataError,
        DisabledPluginError,
        ExpressionError,
        GradhomogError,
        NonfiniteError,
        NotDifferentiableError,
        OptionError,
        PluginError,
        PluginLoadError,
        PluginRunError,
        UnknownPluginError,
    )
    from gradhomog.evidence import Evidence, TaskKey
    from gradhomog.homogenization import Homogenization
    from gradhomog.homogenizer import Homogenizer
    from gradhomog.hooks import hookimpl
    from gradhomog.learners import Learner
    from gradhomog.multitask.accumulation import accumulated
    from gradhomog.multitask.backward import backward
    from gradhomog.multitask.task_features import TaskFeatures, task_features
    from gradhomog.pipelines import Pipeline
    from gradhomog.registry import PluginInfo, Registry
    from gradhomog.reports import Evaluation, StageReport, StepReport, TaskRow, TaskRows
    from gradhomog.rows import Rows, safe_sqrt
    from gradhomog.solvers import (
        bargaining_weights,
        conflict_averse_weights,
        dual_cone_weights,
        minimum_norm_weights,
    )
    from gradhomog.specs import DomainSpec, HomogenizerSpec, LearnerSpec
    from gradhomog.tasks import Task, TaskBatch

__version__ = "0.1.0"

_HOMES = {
    "api": ("available", "domain", "learner", "pipeline"),
    "conflict": ("conflict_rate", "cosines", "distance_bound", "distances", "magnitude_similarity"),
    "domains": ("Domain", "Split"),
    "ensemble": ("Ensemble",),
    "errors": (
        "AmbiguousPluginError",
        "ConfigError",
        "DataError",
        "DisabledPluginError",
        "ExpressionError",
        "GradhomogError",
        "NonfiniteError",
        "NotDifferentiableError",
        "OptionError",
        "PluginError",
        "PluginLoadError",
        "PluginRunError",
        "UnknownPluginError",
    ),
    "evidence": ("Evidence", "TaskKey"),
    "homogenizer": ("Homogenizer",),
    "hooks": ("hookimpl",),
    "homogenization": ("Homogenization",),
    "learners": ("Learner",),
    "multitask.accumulation": ("accumulated",),
    "multitask.backward": ("backward",),
    "multitask.task_features": ("TaskFeatures", "task_features"),
    "pipelines": ("Pipeline",),
    "registry": ("PluginInfo", "Registry"),
    "reports": ("Evaluation", "StageReport", "StepReport", "TaskRow", "TaskRows"),
    "rows": ("Rows", "safe_sqrt"),
    "solvers": ("bargaining_weights", "conflict_averse_weights", "dual_cone_weights", "minimum_norm_weights"),
    "specs": ("DomainSpec", "HomogenizerSpec", "LearnerSpec"),
    "tasks": ("Task", "TaskBatch"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AmbiguousPluginError",
    "ConfigError",
    "DataError",
    "DisabledPluginError",
    "Domain",
    "DomainSpec",
    "Ensemble",
    "Evaluation",
    "Evidence",
    "ExpressionError",
    "GradhomogError",
    "Homogenization",
    "Homogenizer",
    "HomogenizerSpec",
    "Learner",
    "LearnerSpec",
    "NonfiniteError",
    "NotDifferentiableError",
    "OptionError",
    "Pipeline",
    "PluginError",
    "PluginInfo",
    "PluginLoadError",
    "PluginRunError",
    "Registry",
    "Rows",
    "Split",
    "StageReport",
    "StepReport",
    "Task",
    "TaskBatch",
    "TaskFeatures",
    "TaskKey",
    "TaskRow",
    "TaskRows",
    "UnknownPluginError",
    "accumulated",
    "available",
    "backward",
    "bargaining_weights",
    "conflict_averse_weights",
    "conflict_rate",
    "cosines",
    "distance_bound",
    "distances",
    "domain",
    "dual_cone_weights",
    "hookimpl",
    "learner",
    "magnitude_similarity",
    "minimum_norm_weights",
    "pipeline",
    "safe_sqrt",
    "task_features",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'gradhomog' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"gradhomog.{_HOME_OF[name]}"), name)
    globals()[name] = value  # found once, it is an attribute like any other
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
