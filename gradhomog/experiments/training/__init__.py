"""Training of one run: `trainer` has the loop and the checkpoints, `meta_learning` and `multi_task` the steps.

`Job` of `gradhomog.experiments.execution.worker` starts it. Runs of the suite are trained in `suite.protocol`.
"""
