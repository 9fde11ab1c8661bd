"""Learners: one module each, driven by TorchOpt's functional transformations; and the base class for your own."""

from gradhomog_adapters.execution import Execution, ExecutionOptions
from gradhomog_adapters.few_shot import FewShotLearner, Query, Support

__all__ = ["Execution", "ExecutionOptions", "FewShotLearner", "Query", "Support"]
