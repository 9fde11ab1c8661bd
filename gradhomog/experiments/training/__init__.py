"""Training of one run: `trainer` has the loop and the checkpoints, `meta_learning` and `multi_task` the steps.

`Job` of `gradhomog.experiments.execution.worker` starts it. The suite has a loop of its own, in `suite.training`.
"""
