"""Built-in learners, one module each, with TorchOpt's functional optimizers; and the base class of custom learners."""

from gradhomog_adapters.execution import Execution, ExecutionOptions
from gradhomog_adapters.few_shot import FewShotLearner, Query, Support

__all__ = ["Execution", "ExecutionOptions", "FewShotLearner", "Query", "Support"]
